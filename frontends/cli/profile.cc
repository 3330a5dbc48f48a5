#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend.h"
#include "base/clock.h"
#include "base/json.h"
#include "engine/calibration.h"
#include "machine.h"
#include "plan_input.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

struct Arguments {
  BackendFlags backend;
  std::string out = "cluster.json";
  std::string name = "profiled";
  std::string codecs =
      "fp16,efsign,int8,topk:0.01,dgc:0.01,redsync:0.01,randomk:0.01,powersgd:4,powersgd:32,"
      "acpsgd:4,acpsgd:32";
  unsigned turns = 7;
};

const char* group_name(plan::Phase phase) {
  if (phase == plan::Phase::kFlat) return "all";
  return phase == plan::Phase::kInter ? "columns" : "machine";
}

void print_links(const engine::Calibration& calibration) {
  std::printf("\n%-6s %-7s %-15s %12s %19s %8s %9s %9s\n", "link", "group", "collective",
              "latency us", "Gb/s", "fit off", "at worst", "spread");
  for (const sync::Link link : {sync::Link::kIntra, sync::Link::kInter}) {
    for (const engine::CollectiveFit& fit : calibration.links[static_cast<std::size_t>(link)]) {
      double most = 0.0;
      for (const engine::CollectivePoint& point : fit.points) {
        most = std::max(most, point.time.spread());
      }
      char latency[32] = "unknown";
      if (fit.latency_known) (void)std::snprintf(latency, sizeof latency, "%.1f", fit.latency_us);
      // An error of the rate's own size leaves nothing of the rate.
      char rate[48] = "unknown";
      if (fit.rate_known && fit.rate_error < 1.0) {
        (void)std::snprintf(rate, sizeof rate, "%.3f +- %.0f %%", fit.gbps, 100.0 * fit.rate_error);
      }
      std::printf("%-6s %-7s %-15s %12s %19s %6.0f %% %7.0f %% %7.0f %%\n",
                  link == sync::Link::kIntra ? "intra" : "inter", group_name(fit.phase),
                  std::string(plan::to_text(fit.collective)).c_str(), latency, rate,
                  100.0 * fit.median_error, 100.0 * fit.worst_error, 100.0 * most);
    }
  }
}

void print_codecs(const engine::Calibration& calibration) {
  std::printf("\n%-15s %10s %12s %12s %9s %9s\n", "codec", "elements", "encode us", "decode us",
              "spread", "spread");
  for (const engine::CodecCosts& codec : calibration.codecs) {
    for (const engine::CodecPoint& point : codec.points) {
      std::printf("%-15s %10zu %12.1f %12.1f %7.0f %% %7.0f %%\n", codec.codec.c_str(),
                  point.elements, point.encode.median_us, point.decode.median_us,
                  100.0 * point.encode.spread(), 100.0 * point.decode.spread());
    }
  }
}

Status run(const Arguments& arguments) {
  if (Status status = can_write(arguments.out); !status) return status;
  auto world = make_world(arguments.backend);
  if (!world) return world.error();
  const bool speaks = world->speaks();
  std::vector<Result<engine::Calibration>> results(world->ends.size(),
                                                   Result<engine::Calibration>());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < world->ends.size(); ++i) {
    threads.emplace_back([&, i] {
      auto fabric = sync::Fabric::make(std::move(world->ends[i]), world->topology);
      if (!fabric) {
        results[i] = tl::unexpected(fabric.error());
        return;
      }
      engine::CalibrationOptions options{.codecs = split(arguments.codecs),
                                         .turns = arguments.turns,
                                         .turn = std::chrono::milliseconds(20)};
      if (fabric->rank() == 0) {
        options.progress = [](std::string_view what) {
          std::printf("measuring %s\n", std::string(what).c_str());
          std::fflush(stdout);
        };
      }
      results[i] = engine::calibrate(*fabric, options, steady_clock());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    if (!result) return result.error();
  }
  if (!speaks) return {};
  const engine::Calibration& calibration = *results.front();
  print_links(calibration);
  print_codecs(calibration);
  Json json = engine::to_cluster_json(calibration, arguments.name,
                                      "measured by gradpress profile on " + machine_text() + ", " +
                                          date_text() + ", backend " + world->backend + ", link " +
                                          arguments.backend.link);
  json["date"] = date_text();
  json["machine"] = machine_text();
  json["backend"] = world->backend;
  if (Status status = write_json(arguments.out, json); !status) return status;
  std::printf("\n%s: %u machines x %u workers\n", arguments.out.c_str(),
              calibration.topology.machines, calibration.topology.workers_per_machine);
  return {};
}

}  // namespace

void add_profile(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("profile", "measure links, collectives and codecs; write a cluster file");
  auto arguments = std::make_shared<Arguments>();
  add_backend_flags(*verb, arguments->backend);
  verb->add_option("--out,--json", arguments->out, "the cluster file")->capture_default_str();
  verb->add_option("--name", arguments->name, "the cluster's name in it")->capture_default_str();
  verb->add_option("--codecs", arguments->codecs, "codecs to measure, comma-separated")
      ->capture_default_str();
  verb->add_option("-n", arguments->turns, "timed turns per size")
      ->check(CLI::Range(1U, 1000U))
      ->capture_default_str();
  verb->footer(
      "Example:\n"
      "  gradpress profile --workers 4 --link 1gbit,50us --out cluster.json\n"
      "  gradpress launch -n 4 -- gradpress profile --backend gloo --out cluster.json");
  verb->callback([arguments, &exit_code] {
    const Status status = run(*arguments);
    if (status.is_ok()) return;
    std::fprintf(stderr, "gradpress profile: %s\n", status.to_string().c_str());
    exit_code = exit_code_of(status);
  });
}

}  // namespace gradpress::cli
