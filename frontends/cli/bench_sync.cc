#include "bench_sync.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend.h"
#include "base/json.h"
#include "collective_timer.h"
#include "machine.h"
#include "plan/fit.h"
#include "sizes.h"
#include "spec/spec.h"
#include "sync_timer.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

struct Options {
  BackendFlags backend;
  std::vector<std::string> codecs = {"efsign", "topk:0.01", "acpsgd:4"};
  std::vector<std::string> paths = {"auto"};
  std::string least_bytes = "1M";
  std::string most_bytes;
  std::string json;
  unsigned tensors = 1;
  double factor = 4.0;
  Turns turns{.timed = 5, .warmup = 1};
};

constexpr const char* kShortcuts = "auto, allreduce, allgather, divisible, hierarchical";

/// The option that a short-cut stands for with a codec; any other text is an option's own.
Result<plan::Option> chosen_option(const std::string& text, const plan::CodecFit& codec) {
  std::string path = text;
  if (path == "auto") {
    const bool sparse = codec.name.find(':') != std::string::npos && !codec.reducible;
    path = codec.reducible || !codec.encodes ? "allreduce" : (sparse ? "allgather" : "divisible");
  }
  if (path == "allreduce") {
    path = codec.rounds == 2
               ? "Comp@host > allreduce@flat > Comp@host > allreduce@flat > Decomp@host"
               : "Comp@host > allreduce@flat > Decomp@host";
    if (!codec.encodes) path = "allreduce@flat";
  } else if (path == "allgather") {
    path = "Comp@host > allgather@flat > Decomp@host";
  } else if (path == "divisible") {
    path = codec.encodes ? "Comp@host > alltoall@flat > Decomp@host > Comp@host > allgather@flat > "
                           "Decomp@host"
                         : "reduce-scatter@flat > allgather@flat";
  } else if (path == "hierarchical") {
    path = codec.encodes ? "reduce-scatter@intra1 > Comp@host > allgather@inter > Decomp@host > "
                           "allgather@intra2"
                         : "reduce-scatter@intra1 > allreduce@inter > allgather@intra2";
  }
  auto option = plan::parse_option(path);
  if (!option) {
    return fail(Code::kInvalidArgument, option.error().message(), "; short-cuts are ", kShortcuts);
  }
  return option;
}

/// Near-square matrices, so that every codec can take them.
std::vector<sync::Member> tensors_of(const std::string& codec, std::size_t bytes, unsigned count) {
  const std::size_t elements = std::max<std::size_t>(1, bytes / sizeof(float) / count);
  const auto rows =
      std::max<std::size_t>(1, static_cast<std::size_t>(std::sqrt(static_cast<double>(elements))));
  std::vector<sync::Member> members;
  for (unsigned i = 0; i < count; ++i) {
    members.push_back(
        {.name = "bench", .shape = Shape{rows, elements / rows}, .tensor = i, .codec = codec});
  }
  return members;
}

/// The uncompressed all-reduce of the same gradients.
struct Baseline {
  double us = 0.0;
  double bound_us = 0.0;  ///< what the link alone asks for; 0 where it has no limit
};

void print_heading(const Options& options, const BackendWorld& world) {
  std::printf("# gradpress bench sync: %s, %s\n", date_text().c_str(), machine_text().c_str());
  std::printf("# backend %s, %u machines of %u, links between machines %s: %s\n",
              world.backend.c_str(), world.topology.machines, world.topology.workers_per_machine,
              world.emulated() ? "emulated" : "as given for the bound",
              comm::to_text(world.link).c_str());
  std::printf("# %u tensor%s in one message; time: median and least of %u steps, us; algbw: GB/s\n",
              options.tensors, options.tensors == 1 ? "" : "s", options.turns.timed);
  std::printf("# wire: most bytes one worker sent; gain: how many times faster than all-reduce\n");
  std::printf("# of the raw gradients; bound: time over what the link asks for that all-reduce\n");
}

Json report_row(const sync::MessageSpec& spec, const BackendWorld& world, const SyncCost& cost,
                const Baseline& baseline) {
  const std::string& codec = spec.members.front().codec;
  const std::string path = plan::to_text(spec.option);
  char bound[16] = "-";
  if (baseline.bound_us > 0.0) {
    std::snprintf(bound, sizeof bound, "%.3f", cost.us.median / baseline.bound_us);
  }
  std::printf(
      "%-14s %10zu %11.1f %11.1f %8.3f %5llu %10llu %8.2f %7s\n", codec.c_str(), cost.bytes,
      cost.us.median, cost.us.least, static_cast<double>(cost.bytes) * 1e-3 / cost.us.median,
      static_cast<unsigned long long>(cost.wrong), static_cast<unsigned long long>(cost.wire_bytes),
      baseline.us / cost.us.median, bound);
  std::fflush(stdout);
  Json row = {{"name", codec + " by " + path},
              {"codec", codec},
              {"option", path},
              {"backend", world.backend},
              {"workers", world.topology.workers()},
              {"local_size", world.topology.workers_per_machine},
              {"tensors", spec.members.size()},
              {"bytes", cost.bytes},
              {"median_us", cost.us.median},
              {"min_us", cost.us.least},
              {"max_us", cost.us.most},
              {"wrong", cost.wrong},
              {"wire_bytes", cost.wire_bytes},
              {"vs_allreduce", baseline.us / cost.us.median},
              {"vs_bound", nullptr}};
  if (baseline.bound_us > 0.0) row["vs_bound"] = cost.us.median / baseline.bound_us;
  return row;
}

Status run(const Options& options) {
  const auto least = parse_bytes(options.least_bytes);
  if (!least) return least.error();
  const auto most = options.most_bytes.empty() ? least : parse_bytes(options.most_bytes);
  if (!most) return most.error();
  std::vector<std::pair<std::string, plan::Option>> jobs = {
      {"none", *plan::parse_option("allreduce@flat")}};
  for (const std::string& codec : options.codecs) {
    const auto spec = codec::parse_spec(codec);
    if (!spec) return spec.error();
    for (const std::string& path : options.paths) {
      const auto option = chosen_option(path, plan::codec_fit(*spec));
      if (!option) return option.error();
      jobs.emplace_back(codec, *option);
    }
  }
  auto world = make_world(options.backend);
  if (!world) return world.error();
  const bool speaks = world->speaks();
  auto timer = SyncTimer::make(*world);
  if (!timer) return timer.error();
  if (speaks) print_heading(options, *world);
  Json rows = Json::array();
  for (auto size = static_cast<double>(*least); size <= static_cast<double>(*most);
       size *= options.factor) {
    Baseline baseline;
    if (speaks)
      std::printf("#\n%-14s %10s %11s %11s %8s %5s %10s %8s %7s\n", "# codec", "size B", "time",
                  "least", "algbw", "wrong", "wire B", "gain", "bound");
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const auto& [codec, option] = jobs[i];
      const sync::MessageSpec spec{
          .members = tensors_of(codec, static_cast<std::size_t>(size), options.tensors),
          .option = option};
      const auto cost = timer->cost(spec, options.turns);
      if (!cost) return cost.error();
      if (i == 0) {
        baseline.us = cost->us.median;
        baseline.bound_us =
            collective_bound(CollectiveKind::kAllReduce, world->topology, world->link, cost->bytes)
                .bandwidth_us;
      }
      if (!speaks) continue;
      if (i == 0 || jobs[i - 1].second != option) {
        std::printf("# %s\n", plan::to_text(option).c_str());
      }
      rows.push_back(report_row(spec, *world, *cost, baseline));
    }
  }
  if (options.json.empty() || !speaks) return {};
  return write_json(options.json, Json{{"format", "gradpress-bench-sync-1"},
                                       {"date", date_text()},
                                       {"machine", machine_text()},
                                       {"link", comm::to_text(world->link)},
                                       {"rows", rows}});
}

}  // namespace

void add_bench_sync(CLI::App& bench, int& exit_code) {
  CLI::App* verb = bench.add_subcommand(
      "sync", "whole steps of a message, codec and collectives, beside the raw all-reduce");
  auto options = std::make_shared<Options>();
  add_backend_flags(*verb, options->backend);
  verb->add_option("--codec", options->codecs, "codecs, comma-separated")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--option", options->paths,
                   std::string("options, comma-separated: an option's text, or ") + kShortcuts)
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--tensors", options->tensors, "tensors that share the message")
      ->check(CLI::Range(1U, 100000U))
      ->capture_default_str();
  verb->add_option("-b", options->least_bytes, "smallest size of all gradients, in bytes (K, M, G)")
      ->capture_default_str();
  verb->add_option("-e", options->most_bytes, "largest size; default: the smallest alone");
  verb->add_option("-f", options->factor, "factor between sizes")
      ->check(CLI::Range(1.1, 1024.0))
      ->capture_default_str();
  verb->add_option("-n", options->turns.timed, "timed steps")
      ->check(CLI::Range(1U, 100000U))
      ->capture_default_str();
  verb->add_option("-w", options->turns.warmup, "steps before the timed ones")
      ->check(CLI::Range(0U, 1000U))
      ->capture_default_str();
  verb->add_option("--json", options->json, "also write the figures to this file");
  verb->footer(
      "The first row is the raw all-reduce. Each message is verified before it is timed.\n"
      "Example: gradpress bench sync --workers 4 --link 100mbit -b 25000000 --codec efsign "
      "--option divisible");
  verb->callback([options, &exit_code] {
    const Status status = run(*options);
    if (status.is_ok()) return;
    std::fprintf(stderr, "gradpress bench sync: %s\n", status.message().c_str());
    exit_code = exit_code_of(status);
  });
}

}  // namespace gradpress::cli
