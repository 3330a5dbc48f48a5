#include "bench_engine.h"

#include <gradpress/engine.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend.h"
#include "base/clock.h"
#include "base/json.h"
#include "machine.h"
#include "sizes.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

struct Options {
  BackendFlags backend;
  std::string codec = "none";
  std::string bytes = "25M";
  std::string bucket = {};
  std::size_t bucket_bytes = 0;  ///< parsed; 0: the engine's own
  unsigned tensors = 300;
  unsigned steps = 20;
  unsigned warmup = 3;
  std::string json;
};

double us(Time time) { return std::chrono::duration<double, std::micro>(time).count(); }

/// One worker's times; after the exchange the slowest rank's.
struct Times {
  std::vector<float> plain_us = {};
  std::vector<float> engine_us = {};
  std::uint64_t wrong = 0;
  EngineStep last = {};
};

/// The engine owns its group; what is timed beside it runs on a second one of the same ranks.
class Bench {
 public:
  Bench(const Options& options, std::size_t elements, const comm::Topology& topology)
      : options_(options), elements_(elements), topology_(topology) {}

  Result<Times> run(std::unique_ptr<Group> end) {
    // First: after a failure they belong to the groups.
    std::vector<std::vector<float>> gradients(options_.tensors, std::vector<float>(elements_));
    std::vector<float> plain(elements_ * options_.tensors);
    std::vector<float> all;
    std::vector<unsigned> ranks(end->size());
    std::iota(ranks.begin(), ranks.end(), 0U);
    auto beside = end->subgroup(ranks);
    if (!beside) return tl::unexpected(beside.error());
    auto engine = make_engine(std::move(end));
    if (!engine) return tl::unexpected(engine.error());
    auto times = verify(**engine, **beside, gradients);
    for (unsigned i = 0; times && i < options_.warmup + options_.steps; ++i) {
      const bool counts = i >= options_.warmup;
      // Side by side, so that a busy machine is busy for both.
      const auto first = plain_us(**beside, plain);
      const auto second = engine_us(**engine, **beside, gradients, *times);
      if (!first) return tl::unexpected(first.error());
      if (!second) return tl::unexpected(second.error());
      if (!counts) continue;
      times->plain_us.push_back(static_cast<float>(*first));
      times->engine_us.push_back(static_cast<float>(*second));
    }
    for (std::vector<float>* own : {&times->plain_us, &times->engine_us}) {
      if (Status status = take_slowest(**beside, *own, all); !status) return tl::unexpected(status);
    }
    return times;
  }

 private:
  Result<std::unique_ptr<Engine>> make_engine(std::unique_ptr<Group> end) const {
    std::vector<EngineTensor> tensors;
    for (unsigned i = 0; i < options_.tensors; ++i) {
      tensors.push_back(
          {.name = std::string("t").append(std::to_string(i)), .shape = Shape::flat(elements_)});
    }
    EngineOptions engine{.codec = options_.codec};
    if (options_.bucket_bytes > 0) {
      engine.bucket_bytes = engine.raw_bucket_bytes = options_.bucket_bytes;
    }
    return Engine::make({.group = std::move(end),
                         .machines = topology_.machines,
                         .workers_per_machine = topology_.workers_per_machine},
                        tensors, engine);
  }

  /// Small whole numbers, whose mean over the ranks is exact where nothing is encoded.
  Result<Times> verify(Engine& engine, Group& beside,
                       std::vector<std::vector<float>>& gradients) const {
    Times times;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      std::ranges::fill(gradients[i], static_cast<float>((i + beside.rank()) % 64));
    }
    if (auto step = engine_us(engine, beside, gradients, times); !step) {
      return tl::unexpected(step.error());
    }
    if (options_.codec != "none") return times;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      float sum = 0.0F;
      for (unsigned rank = 0; rank < beside.size(); ++rank) {
        sum += static_cast<float>((i + rank) % 64);
      }
      const float wanted = sum * (1.0F / static_cast<float>(beside.size()));
      times.wrong += static_cast<std::uint64_t>(
          std::ranges::count_if(gradients[i], [&](float value) { return value != wanted; }));
    }
    return times;
  }

  static Result<double> plain_us(Group& group, std::vector<float>& values) {
    Status status = group.run({.kind = CollectiveKind::kBarrier});
    const Time begin = steady_clock().now();
    if (status) {
      status = group.run({.kind = CollectiveKind::kAllReduce,
                          .type = DataType::kFloat32,
                          .in = std::as_bytes(std::span(values)),
                          .out = std::as_writable_bytes(std::span(values)),
                          .tensor = "bench"});
    }
    if (!status) return tl::unexpected(status);
    return us(steady_clock().now() - begin);
  }

  static Result<double> engine_us(Engine& engine, Group& beside,
                                  std::vector<std::vector<float>>& gradients, Times& times) {
    if (Status status = beside.run({.kind = CollectiveKind::kBarrier}); !status) {
      return tl::unexpected(status);
    }
    const Time begin = steady_clock().now();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (Status status = engine.ready(i, gradients[i]); !status) return tl::unexpected(status);
    }
    const auto step = engine.wait();
    if (!step) return tl::unexpected(step.error());
    times.last = *step;
    return us(steady_clock().now() - begin);
  }

  static Status take_slowest(Group& group, std::vector<float>& own, std::vector<float>& all) {
    all.resize(own.size() * group.size());
    const Status status = group.run({.kind = CollectiveKind::kAllGather,
                                     .type = DataType::kFloat32,
                                     .in = std::as_bytes(std::span(own)),
                                     .out = std::as_writable_bytes(std::span(all)),
                                     .tensor = "bench"});
    if (!status) return status;
    for (std::size_t i = 0; i < all.size(); ++i) {
      own[i % own.size()] = std::max(own[i % own.size()], all[i]);
    }
    return {};
  }

  const Options& options_;
  const std::size_t elements_;
  const comm::Topology topology_;
};

struct Spread {
  double median = 0.0, least = 0.0, most = 0.0;
};
Spread spread_of(std::vector<float> times) {
  std::ranges::sort(times);
  return {.median = times[times.size() / 2], .least = times.front(), .most = times.back()};
}

Status report(const Options& options, const BackendWorld& world, std::size_t bytes,
              const Times& times) {
  const Spread plain = spread_of(times.plain_us);
  const Spread engine = spread_of(times.engine_us);
  const double ratio = engine.median / plain.median;
  std::printf("# gradpress bench engine: %s, %s\n", date_text().c_str(), machine_text().c_str());
  std::printf(
      "# backend %s, %u machines of %u, link %s; %u tensors of %zu bytes in all, codec %s\n",
      world.backend.c_str(), world.topology.machines, world.topology.workers_per_machine,
      comm::to_text(world.link).c_str(), options.tensors, bytes, options.codec.c_str());
  std::printf("# the slowest rank's time, us, over %u steps by turns; wrong elements: %llu\n",
              options.steps, static_cast<unsigned long long>(times.wrong));
  std::printf("%-22s %12s %12s %12s\n", "#", "median", "least", "most");
  std::printf("%-22s %12.1f %12.1f %12.1f\n", "one plain all-reduce", plain.median, plain.least,
              plain.most);
  std::printf("%-22s %12.1f %12.1f %12.1f   %.2f times\n", "a step of the engine", engine.median,
              engine.least, engine.most, ratio);
  if (times.wrong > 0) {
    return Status::error(Code::kInternal, times.wrong, " elements are not the mean of all ranks'");
  }
  if (options.json.empty()) return {};
  const auto row = [&](const char* name, const Spread& spread) {
    return Json{{"name", name},
                {"backend", world.backend},
                {"workers", world.topology.workers()},
                {"tensors", options.tensors},
                {"codec", options.codec},
                {"bytes", bytes},
                {"median_us", spread.median},
                {"min_us", spread.least},
                {"max_us", spread.most},
                {"vs_plain", spread.median / plain.median}};
  };
  return write_json(options.json, Json{{"format", "gradpress-bench-engine-1"},
                                       {"date", date_text()},
                                       {"machine", machine_text()},
                                       {"link", comm::to_text(world.link)},
                                       {"rows", {row("plain", plain), row("engine", engine)}}});
}

Status run(const Options& options) {
  const auto bytes = parse_bytes(options.bytes);
  if (!bytes) return bytes.error();
  const std::size_t elements = std::max<std::size_t>(1, *bytes / sizeof(float) / options.tensors);
  auto world = make_world(options.backend);
  if (!world) return world.error();
  const bool speaks = world->speaks();
  std::vector<Result<Times>> results(world->ends.size(), Result<Times>());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < world->ends.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = Bench(options, elements, world->topology).run(std::move(world->ends[i]));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    if (!result) return result.error();
  }
  if (!speaks) return {};
  return report(options, *world, elements * sizeof(float) * options.tensors, *results.front());
}

}  // namespace

void add_bench_engine(CLI::App& bench, int& exit_code) {
  CLI::App* verb =
      bench.add_subcommand("engine", "a step of the engine beside one plain all-reduce");
  auto options = std::make_shared<Options>();
  options->backend.workers = 2;
  add_backend_flags(*verb, options->backend);
  verb->add_option("--codec", options->codec, "what the engine runs")->capture_default_str();
  verb->add_option("--tensors", options->tensors, "tensors that share the bytes")
      ->check(CLI::Range(1U, 100000U))
      ->capture_default_str();
  verb->add_option("-b", options->bytes, "bytes of all gradients (K, M, G)")->capture_default_str();
  verb->add_option("--bucket", options->bucket,
                   "raw bytes at which a message closes (K, M, G); default: the engine's");
  verb->add_option("-n", options->steps, "timed steps")
      ->check(CLI::Range(1U, 100000U))
      ->capture_default_str();
  verb->add_option("-w", options->warmup, "steps before the timed ones")
      ->check(CLI::Range(0U, 1000U))
      ->capture_default_str();
  verb->add_option("--json", options->json, "also write the figures to this file");
  verb->footer(
      "The mean is verified before anything is timed.\n"
      "Example: gradpress bench engine --workers 2 --tensors 300 -b 25M");
  verb->callback([options, &exit_code] {
    Status status;
    if (!options->bucket.empty()) {
      const auto bytes = parse_bytes(options->bucket);
      if (bytes) options->bucket_bytes = *bytes;
      if (!bytes) status = bytes.error();
    }
    if (status.is_ok()) status = run(*options);
    if (status.is_ok()) return;
    std::fprintf(stderr, "gradpress bench engine: %s\n", status.message().c_str());
    exit_code = exit_code_of(status);
  });
}

}  // namespace gradpress::cli
