#include "bench_collective.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend.h"
#include "base/json.h"
#include "collective_timer.h"
#include "machine.h"
#include "sizes.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

struct Options {
  BackendFlags backend;
  std::vector<std::string> ops = {"allreduce"};
  std::string type = "float32";
  std::string least_bytes = "1M";
  std::string most_bytes;
  std::string json;
  double factor = 4.0;
  Turns turns{.timed = 10, .warmup = 2};
};

struct Op {
  std::string_view text;
  CollectiveKind kind;
};
/// As in an option's text.
constexpr std::array kOps = {Op{"allreduce", CollectiveKind::kAllReduce},
                             Op{"reduce-scatter", CollectiveKind::kReduceScatter},
                             Op{"allgather", CollectiveKind::kAllGather},
                             Op{"alltoall", CollectiveKind::kAllToAll},
                             Op{"gather", CollectiveKind::kGather},
                             Op{"reduce", CollectiveKind::kReduce},
                             Op{"broadcast", CollectiveKind::kBroadcast},
                             Op{"barrier", CollectiveKind::kBarrier}};

Result<std::vector<Op>> chosen_ops(const Options& options) {
  std::vector<Op> ops;
  for (const std::string& text : options.ops) {
    std::string known;
    bool found = false;
    for (const Op& op : kOps) {
      known.append(known.empty() ? "" : ", ").append(op.text);
      if (text != "all" && text != op.text) continue;
      ops.push_back(op);
      found = true;
    }
    if (!found) {
      return fail(Code::kInvalidArgument, "collective \"", text, "\": wanted all, ", known);
    }
  }
  return ops;
}

Result<DataType> chosen_type(const std::string& text) {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16}) {
    if (text == type_name(type)) return type;
  }
  return fail(Code::kInvalidArgument, "type \"", text, "\": wanted float32, float16 or bfloat16");
}

void print_heading(const Options& options, const BackendWorld& world) {
  std::printf("# gradpress bench collective: %s, %s\n", date_text().c_str(),
              machine_text().c_str());
  std::printf("# backend %s, %u machines of %u, links between machines %s: %s\n",
              world.backend.c_str(), world.topology.machines, world.topology.workers_per_machine,
              world.emulated() ? "emulated" : "as given for the bounds",
              comm::to_text(world.link).c_str());
  std::printf("# %s elements; time: median and least of %u turns, us; algbw, busbw: GB/s\n",
              options.type.c_str(), options.turns.timed);
  std::printf(
      "# wire: most bytes one worker sent; bound, model: time over what the rate allows,\n");
  std::printf("# without and with latencies\n#\n");
  std::printf("%-14s %10s %11s %11s %7s %7s %5s %10s %6s %6s\n", "# collective", "size B", "time",
              "least", "algbw", "busbw", "wrong", "wire B", "bound", "model");
}

/// Per size and collective: the row as it is printed and as it is written.
Json report_row(CollectiveKind kind, DataType type, std::size_t bytes, const CollectiveCost& cost,
                const BackendWorld& world) {
  const CollectiveBound bound = collective_bound(kind, world.topology, world.link, bytes);
  const double model = bound.bandwidth_us + bound.latency_us;
  const double algbw = static_cast<double>(bytes) * 1e-3 / cost.us.median;
  const bool bounded = bound.bandwidth_us > 0.0;
  const auto ratio_text = [](double time, double unit) {
    char text[16] = "-";
    if (unit > 0.0) std::snprintf(text, sizeof text, "%.3f", time / unit);
    return std::string(text);
  };
  std::printf("%-14s %10zu %11.1f %11.1f %7.3f %7.3f %5llu %10llu %6s %6s\n",
              std::string(collective_name(kind)).c_str(), bytes, cost.us.median, cost.us.least,
              algbw, algbw * bus_factor(kind, world.topology.workers()),
              static_cast<unsigned long long>(cost.wrong),
              static_cast<unsigned long long>(cost.wire_bytes),
              ratio_text(cost.us.median, bound.bandwidth_us).c_str(),
              ratio_text(cost.us.median, model).c_str());
  std::fflush(stdout);
  Json row = {{"name", collective_name(kind)},
              {"backend", world.backend},
              {"workers", world.topology.workers()},
              {"local_size", world.topology.workers_per_machine},
              {"type", type_name(type)},
              {"bytes", bytes},
              {"median_us", cost.us.median},
              {"min_us", cost.us.least},
              {"max_us", cost.us.most},
              {"wrong", cost.wrong},
              {"wire_bytes", cost.wire_bytes},
              {"vs_bound", nullptr},
              {"vs_model", nullptr},
              {"min_vs_model", nullptr}};
  if (bounded) row["vs_bound"] = cost.us.median / bound.bandwidth_us;
  if (model > 0.0) {
    row["vs_model"] = cost.us.median / model;
    row["min_vs_model"] = cost.us.least / model;
  }
  return row;
}

Status run(const Options& options) {
  const auto least = parse_bytes(options.least_bytes);
  if (!least) return least.error();
  const auto most = options.most_bytes.empty() ? least : parse_bytes(options.most_bytes);
  if (!most) return most.error();
  const auto ops = chosen_ops(options);
  if (!ops) return ops.error();
  const auto type = chosen_type(options.type);
  if (!type) return type.error();
  auto world = make_world(options.backend);
  if (!world) return world.error();

  const bool speaks = world->speaks();
  CollectiveTimer timer(std::move(world->ends));
  if (speaks) print_heading(options, *world);
  Json rows = Json::array();
  for (const Op& op : *ops) {
    for (auto size = static_cast<double>(*least); size <= static_cast<double>(*most);
         size *= options.factor) {
      // Whole elements for every worker.
      const std::size_t unit = size_of(*type) * world->topology.workers();
      const std::size_t bytes =
          std::max<std::size_t>(1, static_cast<std::size_t>(size) / unit) * unit;
      const auto cost = timer.cost(op.kind, *type, bytes, options.turns);
      if (!cost) return cost.error();
      if (speaks) rows.push_back(report_row(op.kind, *type, bytes, *cost, *world));
      if (op.kind == CollectiveKind::kBarrier) break;
    }
  }
  const auto sent = timer.sent_by_rank();
  if (!sent) return sent.error();
  if (options.json.empty() || !speaks) return {};
  Json sent_rows = Json::array();
  for (const SentBytes& one : *sent) {
    sent_rows.push_back({{"intra", one.intra}, {"inter", one.inter}});
  }
  return write_json(options.json, Json{{"format", "gradpress-bench-collective-1"},
                                       {"date", date_text()},
                                       {"machine", machine_text()},
                                       {"link", comm::to_text(world->link)},
                                       {"rows", rows},
                                       {"sent_by_rank", sent_rows}});
}

}  // namespace

void add_bench_collective(CLI::App& bench, int& exit_code) {
  CLI::App* verb =
      bench.add_subcommand("collective", "collectives of a backend, beside what links allow");
  auto options = std::make_shared<Options>();
  add_backend_flags(*verb, options->backend);
  verb->add_option("--op", options->ops, "collectives, comma-separated, or all")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--type", options->type, "float32, float16 or bfloat16")->capture_default_str();
  verb->add_option("-b", options->least_bytes, "smallest size a worker holds, in bytes (K, M, G)")
      ->capture_default_str();
  verb->add_option("-e", options->most_bytes, "largest size; default: the smallest alone");
  verb->add_option("-f", options->factor, "factor between sizes")
      ->check(CLI::Range(1.1, 1024.0))
      ->capture_default_str();
  verb->add_option("-n", options->turns.timed, "timed turns")
      ->check(CLI::Range(1U, 100000U))
      ->capture_default_str();
  verb->add_option("-w", options->turns.warmup, "turns before the timed ones")
      ->check(CLI::Range(0U, 1000U))
      ->capture_default_str();
  verb->add_option("--json", options->json, "also write the figures to this file");
  verb->footer(
      "Each collective is verified before it is timed. With a backend of processes every rank runs "
      "this\n"
      "command, and rank 0 prints; a time is then the slowest rank's own.\n"
      "Example: gradpress bench collective --workers 4 --link 1gbit,50us -b 10000000 --json "
      "c.json\n"
      "         mpirun -n 4 gradpress bench collective --backend mpi -b 25M");
  verb->callback([options, &exit_code] {
    const Status status = run(*options);
    if (status.is_ok()) return;
    std::fprintf(stderr, "gradpress bench collective: %s\n", status.message().c_str());
    exit_code = exit_code_of(status);
  });
}

}  // namespace gradpress::cli
