#include <gradpress/engine.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backend.h"
#include "engine/program.h"
#include "engine/simple_plan.h"
#include "plan/plan_file.h"
#include "plan/planner.h"
#include "plan_input.h"
#include "replay_report.h"
#include "replayer.h"
#include "spec/facts.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

struct Arguments {
  BackendFlags backend;
  std::string trace, cluster, plan, codec = "none", strategy = "best", fusion = "auto", gradients;
  double shrink = 1.0;
  double time_factor = 1.0;
  unsigned steps = 20;
  unsigned warmup = 3;
  bool serial = false;
  ReplayFiles files;
};

/// Fewer elements, so that a large model fits a small machine: the first extent shrinks.
plan::Trace scaled(plan::Trace trace, double shrink, double time_factor) {
  trace.forward_us *= time_factor;
  for (plan::Tensor& tensor : trace.tensors) {
    tensor.ready_gap_us *= time_factor;
    const auto dims = tensor.shape.dims();
    std::vector<std::uint64_t> extents(dims.begin(), dims.end());
    if (extents.empty()) continue;
    // Both sides of a matrix alike, so that it stays one.
    const double factor = extents.size() > 1 ? std::sqrt(shrink) : shrink;
    for (std::size_t i = 0; i < std::min<std::size_t>(2, extents.size()); ++i) {
      extents[i] = std::max<std::uint64_t>(
          1, static_cast<std::uint64_t>(std::llround(static_cast<double>(extents[i]) / factor)));
    }
    tensor.shape = *Shape::from(extents);
    tensor.elements = tensor.shape.elements();
  }
  return trace;
}

std::vector<engine::TensorSpec> tensor_specs(const plan::Trace& trace) {
  std::vector<engine::TensorSpec> specs;
  for (const plan::Tensor& tensor : trace.tensors) {
    specs.push_back({.name = tensor.name, .shape = tensor.shape});
  }
  return specs;
}

Status check_world(const plan::Cluster& cluster, const comm::Topology& topology) {
  if (cluster.topology.machines == topology.machines &&
      cluster.topology.workers == topology.workers_per_machine) {
    return {};
  }
  return Status::error(Code::kInvalidArgument, "cluster ", cluster.name, " has ",
                       cluster.topology.machines, " x ", cluster.topology.workers,
                       " workers, this world ", topology.machines, " x ",
                       topology.workers_per_machine);
}

Result<Piece> unplanned(Piece piece, const Arguments& arguments, const comm::Topology& topology) {
  auto messages = engine::simple_plan(tensor_specs(piece.trace), arguments.codec, topology,
                                      {.fusion = arguments.fusion == "auto"});
  if (!messages) return tl::unexpected(messages.error());
  engine::Program& program = piece.programs.first;
  program.messages = std::move(*messages);
  program.order = engine::natural_order(program.messages, topology);
  piece.strategy = "unplanned";
  piece.alternates = std::ranges::any_of(program.messages, [](const auto& message) {
    return std::ranges::any_of(message.members, [](const sync::Member& member) {
      const codec::Facts* const facts = codec::facts_of_text(member.codec);
      return facts != nullptr && facts->alternates();
    });
  });
  return piece;
}

Result<Piece> make_piece(const Arguments& arguments, const comm::Topology& topology) {
  auto trace = plan::read_trace(arguments.trace);
  if (!trace) return tl::unexpected(trace.error());
  Piece piece{.trace = scaled(std::move(*trace), arguments.shrink, arguments.time_factor),
              .codec = arguments.codec};
  if (arguments.cluster.empty()) return unplanned(std::move(piece), arguments, topology);
  const auto cluster = plan::read_cluster(arguments.cluster);
  if (!cluster) return tl::unexpected(cluster.error());
  if (Status status = check_world(*cluster, topology); !status) return tl::unexpected(status);

  std::vector<codec::Spec> codecs;
  plan::Strategy strategy;
  if (!arguments.plan.empty()) {
    auto file = plan::read_plan(arguments.plan, piece.trace, *cluster);
    if (!file) return tl::unexpected(file.error());
    codecs = std::move(file->codecs);
    strategy = std::move(file->strategy);
    piece.strategy = arguments.plan;
  } else {
    auto parsed = parse_codecs(arguments.codec);
    if (!parsed) return tl::unexpected(parsed.error());
    codecs = std::move(*parsed);
    // "none" is what a plan does with a tensor that it leaves alone, not a codec to plan with.
    if (arguments.codec == "none") codecs.clear();
    plan::PlanOptions options{
        .strategy = arguments.strategy,
        .fusion = arguments.fusion == "auto" ? plan::Fusion::kAuto : plan::Fusion::kNone};
    options.tree.extended = true;
    auto made = plan::make_plan({piece.trace, *cluster, codecs}, options);
    if (!made) return tl::unexpected(made.error());
    strategy = std::move(made->strategy);
    piece.strategy = made->strategy_name;
  }
  const plan::Setting setting{piece.trace, *cluster, codecs};
  piece.alternates = plan::alternates(setting, strategy);
  piece.predicted_us = plan::predict_us(setting, strategy);
  const auto program_of = [&](unsigned kind) {
    piece.predicted.push_back(plan::predict(setting, strategy, kind));
    engine::Program program;
    program.messages =
        engine::make_messages(tensor_specs(piece.trace), strategy, codecs, /*seed=*/1, kind);
    program.order = engine::order_of(piece.predicted.back().spans, program.messages, topology);
    return program;
  };
  piece.programs.first = program_of(0);
  if (!piece.alternates) return piece;
  engine::Program second = program_of(1);
  // Steps that do the same need no lanes of their own.
  if (!(strategy.of_round(1) == strategy.buckets) || second.order != piece.programs.first.order) {
    piece.programs.second = std::move(second);
  }
  return piece;
}

/// The recorded gradients in the trace's order, step by step.
Result<std::vector<std::vector<std::span<const float>>>> in_order(const RecordedGradients& recorded,
                                                                  const plan::Trace& trace,
                                                                  const Arguments& arguments) {
  std::map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < recorded.tensors.size(); ++i) {
    by_name.emplace(recorded.tensors[i].name, i);
  }
  std::vector<std::vector<std::span<const float>>> steps(recorded.steps.size());
  for (const plan::Tensor& tensor : trace.tensors) {
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end()) {
      return fail(Code::kInvalidArgument, arguments.gradients, ": has no gradient of tensor ",
                  tensor.name, " of ", arguments.trace,
                  ": record both in one run, with train --record-trace and --record-gradients");
    }
    const Shape& shape = recorded.tensors[found->second].shape;
    if (!(shape == tensor.shape)) {
      return fail(Code::kInvalidArgument, arguments.gradients, ": tensor ", tensor.name,
                  " has shape ", shape.to_string(), ", in ", arguments.trace, " ",
                  tensor.shape.to_string());
    }
    for (std::size_t step = 0; step < steps.size(); ++step) {
      steps[step].emplace_back(recorded.steps[step][found->second]);
    }
    by_name.erase(found);
  }
  if (by_name.empty()) return steps;
  return fail(Code::kInvalidArgument, arguments.gradients, ": tensor ", by_name.begin()->first,
              " is not in ", arguments.trace);
}

Status run(const Arguments& arguments) {
  auto world = make_world(arguments.backend);
  if (!world) return world.error();
  const bool speaks = world->speaks();
  const auto piece = make_piece(arguments, world->topology);
  if (!piece) return piece.error();
  RecordedGradients recorded;
  std::vector<std::vector<std::span<const float>>> gradients;
  if (!arguments.gradients.empty()) {
    auto read = read_gradients(arguments.gradients);
    if (!read) return read.error();
    recorded = std::move(*read);
    auto ordered = in_order(recorded, piece->trace, arguments);
    if (!ordered) return ordered.error();
    gradients = std::move(*ordered);
  }
  std::vector<Result<Replay>> results(world->ends.size(), Result<Replay>());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < world->ends.size(); ++i) {
    threads.emplace_back([&, i] {
      const ReplayOptions options{
          .steps = arguments.steps,
          .warmup = arguments.warmup,
          .alternates = piece->alternates,
          .gradients = gradients,
          .runtime = {.pipelining = !arguments.serial, .record_spans = true}};
      results[i] = replay(std::move(world->ends[i]), world->topology, piece->trace, piece->programs,
                          options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    if (!result) return result.error();
  }
  return speaks ? report_replay(arguments.files, *world, *piece, *results.front()) : Status();
}

}  // namespace

void add_replay(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("replay", "play a trace: emulated backward, real codecs, real network");
  auto arguments = std::make_shared<Arguments>();
  add_backend_flags(*verb, arguments->backend);
  verb->add_option("--trace", arguments->trace, "the trace to play")->required();
  verb->add_option("--cluster", arguments->cluster,
                   "plan and predict on this cluster, such as gradpress profile wrote");
  verb->add_option("--plan", arguments->plan, "play this plan; needs --cluster");
  verb->add_option("--codec", arguments->codec, "codecs to plan with, comma-separated")
      ->capture_default_str();
  verb->add_option("--strategy", arguments->strategy, "as for gradpress plan")
      ->capture_default_str();
  verb->add_option("--fusion", arguments->fusion, "auto or none")
      ->check(CLI::IsMember({"auto", "none"}))
      ->capture_default_str();
  verb->add_option("--shrink", arguments->shrink, "divide every tensor's elements by this")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  verb->add_option("--gradients", arguments->gradients,
                   "play gradients that train --record-gradients wrote, of the same model");
  verb->add_option("--time-factor", arguments->time_factor, "multiply the trace's times by this")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  verb->add_option("-n,--steps", arguments->steps, "timed steps")
      ->check(CLI::Range(1U, 100000U))
      ->capture_default_str();
  verb->add_option("-w,--warmup", arguments->warmup, "steps before the timed ones")
      ->check(CLI::Range(0U, 1000U))
      ->capture_default_str();
  verb->add_flag("--serial", arguments->serial, "no pipelining: send after backward, in a row");
  verb->add_option("--json", arguments->files.json, "also write the figures to this file");
  verb->add_option("--html", arguments->files.html, "predicted and measured timelines, as a page");
  verb->add_option("--perfetto", arguments->files.perfetto,
                   "write both, of every rank, as a trace for ui.perfetto.dev");
  verb->footer(
      "Example:\n"
      "  gradpress profile --workers 4 --link 1gbit,50us --out cluster.json\n"
      "  gradpress replay --trace resnet101.json --cluster cluster.json --codec topk:0.01 \\\n"
      "      --workers 4 --link 1gbit,50us --shrink 10 --html replay.html --perfetto replay.json");
  verb->callback([arguments, &exit_code] {
    if (!arguments->plan.empty() && arguments->cluster.empty()) {
      std::fprintf(stderr, "gradpress replay: --plan needs the --cluster it was made for\n");
      exit_code = kUsage;
      return;
    }
    if (!arguments->gradients.empty() && arguments->shrink != 1.0) {
      std::fprintf(stderr,
                   "gradpress replay: --gradients have the sizes they were recorded with: "
                   "leave --shrink out\n");
      exit_code = kUsage;
      return;
    }
    const Status status = run(*arguments);
    if (status.is_ok()) return;
    std::fprintf(stderr, "gradpress replay: %s\n", status.to_string().c_str());
    exit_code = exit_code_of(status);
  });
}

}  // namespace gradpress::cli
