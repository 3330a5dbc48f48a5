#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend.h"
#include "base/json.h"
#include "engine/program.h"
#include "engine/simple_plan.h"
#include "machine.h"
#include "page.h"
#include "plan/plan_file.h"
#include "plan/planner.h"
#include "plan_input.h"
#include "replayer.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

struct Arguments {
  BackendFlags backend;
  std::string trace, cluster, plan, codec = "none", strategy = "best", fusion = "auto";
  double shrink = 1.0;
  double time_factor = 1.0;
  unsigned steps = 20;
  unsigned warmup = 3;
  bool serial = false;
  std::string json, html;
};

/// What is played, and what was predicted of it where there is a cluster to predict on.
struct Piece {
  plan::Trace trace = {};
  engine::Program program = {};
  std::optional<plan::Timeline> predicted = {};
  double predicted_us = 0.0;
  std::string strategy = {};
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
  piece.program.messages = std::move(*messages);
  piece.program.order = engine::natural_order(piece.program.messages, topology);
  piece.strategy = "unplanned";
  return piece;
}

Result<Piece> make_piece(const Arguments& arguments, const comm::Topology& topology) {
  auto trace = plan::read_trace(arguments.trace);
  if (!trace) return tl::unexpected(trace.error());
  Piece piece{.trace = scaled(std::move(*trace), arguments.shrink, arguments.time_factor)};
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
    plan::PlanOptions options{
        .strategy = arguments.codec == "none" ? "none" : arguments.strategy,
        .fusion = arguments.fusion == "auto" ? plan::Fusion::kAuto : plan::Fusion::kNone};
    options.tree.extended = true;
    auto made = plan::make_plan({piece.trace, *cluster, codecs}, options);
    if (!made) return tl::unexpected(made.error());
    strategy = std::move(made->strategy);
    piece.strategy = made->strategy_name;
  }
  const plan::Setting setting{piece.trace, *cluster, codecs};
  piece.predicted = plan::predict(setting, strategy);
  piece.predicted_us = plan::predict_us(setting, strategy);
  piece.program.messages =
      engine::make_messages(tensor_specs(piece.trace), strategy, codecs, /*seed=*/1);
  piece.program.order = engine::order_of(piece.predicted->spans, piece.program.messages, topology);
  return piece;
}

using LaneTimes = std::array<double, plan::kLanes>;
LaneTimes busy_us(std::span<const plan::Span> spans) {
  LaneTimes busy{};
  for (const plan::Span& span : spans) {
    busy[static_cast<std::size_t>(span.lane)] += span.end_us - span.start_us;
  }
  return busy;
}

/// Lanes in pairs: predicted above measured.
std::string page(const Piece& piece, const Replay& replay, const std::string& verdict) {
  Json data = {{"title", piece.trace.model + ": predicted above measured"}, {"verdict", verdict}};
  for (const plan::Lane lane : plan::kAllLanes) {
    data["lanes"].push_back(std::string(plan::to_text(lane)) + ", predicted");
    data["lanes"].push_back(std::string(plan::to_text(lane)) + ", measured");
  }
  data["spans"] = Json::array();
  // The timeline begins with backward, the measured step with forward.
  const auto add = [&](std::span<const plan::Span> spans, int row, double shift_us) {
    for (const plan::Span& span : spans) {
      const bool backward = span.kind == plan::SpanKind::kBackward;
      const std::string action =
          backward
              ? "backward"
              : plan::to_text(piece.program.messages[span.message].option.actions()[span.action]);
      data["spans"].push_back({2 * static_cast<int>(span.lane) + row, span_kind(span.kind),
                               span.start_us + shift_us, span.end_us + shift_us, span.tensor,
                               action});
    }
  };
  if (piece.predicted) add(piece.predicted->spans, 0, piece.trace.forward_us);
  add(replay.spans, 1, 0.0);
  // By number: spans name tensors so.
  std::vector<Json> tensors(piece.trace.tensors.size());
  const auto& messages = piece.program.messages;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    for (const sync::Member& member : messages[i].members) {
      tensors[member.tensor] = {{"name", member.name},
                                {"elements", member.shape.elements()},
                                {"codec", member.codec},
                                {"option", plan::to_text(messages[i].option)},
                                {"bucket", i}};
    }
  }
  data["tensors"] = tensors;
  data["compare"] = Json::array();
  if (piece.predicted) {
    data["compare"].push_back({{"name", "predicted"}, {"iteration_us", piece.predicted_us}});
  }
  std::vector<double> times = replay.step_us;
  std::ranges::sort(times);
  data["compare"].push_back({{"name", "measured"}, {"iteration_us", times[times.size() / 2]}});
  return plan_page(data);
}

Status report(const Arguments& arguments, const BackendWorld& world, const Piece& piece,
              const Replay& replay) {
  std::vector<double> times = replay.step_us;
  std::ranges::sort(times);
  const double median = times[times.size() / 2];
  const std::uint64_t sent = replay.sent.intra + replay.sent.inter;
  const std::uint64_t promised = replay.promised.intra + replay.promised.inter;
  std::printf("%s, %zu tensors in %zu messages, %s, %u machines x %u, link %s, strategy %s\n",
              piece.trace.model.c_str(), piece.trace.tensors.size(), piece.program.messages.size(),
              world.backend.c_str(), world.topology.machines, world.topology.workers_per_machine,
              comm::to_text(world.link).c_str(), piece.strategy.c_str());
  char verdict[160];
  if (piece.predicted) {
    std::snprintf(verdict, sizeof verdict,
                  "predicted %.3f ms, measured %.3f ms (%.3f to %.3f): the prediction is %+.1f %%",
                  piece.predicted_us / 1e3, median / 1e3, times.front() / 1e3, times.back() / 1e3,
                  100.0 * (piece.predicted_us / median - 1.0));
  } else {
    std::snprintf(verdict, sizeof verdict, "measured %.3f ms (%.3f to %.3f) over %zu steps",
                  median / 1e3, times.front() / 1e3, times.back() / 1e3, times.size());
  }
  std::printf("  %s\n  exposed %.3f ms; sent %llu bytes a step, promised %llu\n", verdict,
              replay.exposed_us / 1e3, static_cast<unsigned long long>(sent),
              static_cast<unsigned long long>(promised));
  const LaneTimes measured = busy_us(replay.spans);
  const LaneTimes predicted = piece.predicted ? busy_us(piece.predicted->spans) : LaneTimes{};
  Json lanes = Json::array();
  std::printf("  %-8s %16s %16s\n", "lane", "predicted ms", "measured ms");
  for (const plan::Lane lane : plan::kAllLanes) {
    const auto i = static_cast<std::size_t>(lane);
    std::printf("  %-8s %16.3f %16.3f\n", std::string(plan::to_text(lane)).c_str(),
                predicted[i] / 1e3, measured[i] / 1e3);
    lanes.push_back({{"lane", plan::to_text(lane)},
                     {"predicted_busy_us", predicted[i]},
                     {"measured_busy_us", measured[i]}});
  }
  if (!arguments.html.empty()) {
    if (Status status = write_text(arguments.html, page(piece, replay, verdict)); !status) {
      return status;
    }
  }
  if (arguments.json.empty()) return {};
  Json json = {{"format", "gradpress-replay-1"},
               {"date", date_text()},
               {"machine", machine_text()},
               {"model", piece.trace.model},
               {"backend", world.backend},
               {"workers", world.topology.workers()},
               {"link", comm::to_text(world.link)},
               {"strategy", piece.strategy},
               {"codec", arguments.codec},
               {"predicted_us", nullptr},
               {"measured_us", median},
               {"measured_min_us", times.front()},
               {"measured_max_us", times.back()},
               {"wire_bytes", sent},
               {"promised_bytes", promised},
               {"exposed_us", replay.exposed_us},
               {"lanes", lanes}};
  if (piece.predicted) json["predicted_us"] = piece.predicted_us;
  return write_json(arguments.json, json);
}

Status run(const Arguments& arguments) {
  auto world = make_world(arguments.backend);
  if (!world) return world.error();
  const bool speaks = world->speaks();
  const auto piece = make_piece(arguments, world->topology);
  if (!piece) return piece.error();
  std::vector<Result<Replay>> results(world->ends.size(), Result<Replay>());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < world->ends.size(); ++i) {
    threads.emplace_back([&, i] {
      const ReplayOptions options{
          .steps = arguments.steps,
          .warmup = arguments.warmup,
          .runtime = {.pipelining = !arguments.serial, .record_spans = true}};
      results[i] =
          replay(std::move(world->ends[i]), world->topology, piece->trace, piece->program, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    if (!result) return result.error();
  }
  return speaks ? report(arguments, *world, *piece, *results.front()) : Status();
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
  verb->add_option("--json", arguments->json, "also write the figures to this file");
  verb->add_option("--html", arguments->html, "predicted and measured timelines, as a page");
  verb->footer(
      "Example:\n"
      "  gradpress profile --workers 4 --link 1gbit,50us --out cluster.json\n"
      "  gradpress replay --trace resnet101.json --cluster cluster.json --codec topk:0.01 \\\n"
      "      --workers 4 --link 1gbit,50us --shrink 10 --html replay.html");
  verb->callback([arguments, &exit_code] {
    if (!arguments->plan.empty() && arguments->cluster.empty()) {
      std::fprintf(stderr, "gradpress replay: --plan needs the --cluster it was made for\n");
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
