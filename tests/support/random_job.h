// Random jobs shaped like real ones, for tests that compare strategies.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/trace.h"

namespace gradpress::test {

/// A model, a cluster and codecs that the cluster has costs for.
struct Job {
  plan::Trace trace;
  plan::Cluster cluster;
  std::vector<codec::Spec> codecs;
};

/// Draws from one seeded generator: the same seed gives the same job on every machine.
class JobMaker {
 public:
  explicit JobMaker(std::uint64_t seed) : random_(seed) {}

  /// `least` to `most` tensors.
  Job make(std::size_t least, std::size_t most) {
    Job job{.trace = trace(least, most), .cluster = cluster(), .codecs = {}};
    constexpr std::array kCodecs = {"randomk:0.01", "dgc:0.01", "efsign", "fp16"};
    const std::size_t first = below(kCodecs.size());
    job.codecs.push_back(*codec::parse_spec(kCodecs[first]));
    if (below(4) == 0) {
      job.codecs.push_back(*codec::parse_spec(kCodecs[(first + 1) % kCodecs.size()]));
    }
    return job;
  }

 private:
  std::uint64_t below(std::uint64_t count) { return random_() % count; }
  double between(double least, double most) {
    return least + (most - least) * static_cast<double>(random_() >> 11) * 0x1p-53;
  }
  /// Even on a logarithmic scale.
  double scale(double least, double most) {
    return std::exp(between(std::log(least), std::log(most)));
  }
  std::uint64_t elements(double least, double most) {
    return static_cast<std::uint64_t>(scale(least, most));
  }

  void add(plan::Trace& trace, std::uint64_t elements, double gap_us) {
    trace.tensors.push_back({.name = std::string("t").append(std::to_string(trace.tensors.size())),
                             .shape = Shape::flat(elements),
                             .elements = elements,
                             .ready_gap_us = gap_us});
  }

  plan::Trace trace(std::size_t least, std::size_t most) {
    plan::Trace trace{.model = {}, .source = {}, .forward_us = 0.0, .tensors = {}};
    if (below(2) == 0) trace.forward_us = scale(10.0, 10'000.0);
    const std::size_t count = least + below(most - least + 1);
    switch (below(4)) {
      case 0:  // Recommendation: a few huge embeddings first in backward, a small MLP after.
        trace.model = "embeddings";
        for (std::size_t i = 0; i < count; ++i) {
          const bool embedding = i < 1 + count / 4;
          add(trace, embedding ? elements(1e6, 6e7) : elements(64, 3e5), scale(5.0, 400.0));
        }
        break;
      case 1: {  // Transformers: blocks of the same sizes, an embedding at the end.
        trace.model = "blocks";
        std::vector<std::uint64_t> block(1 + below(6));
        for (auto& size : block) size = below(2) == 0 ? elements(256, 4096) : elements(2e5, 5e6);
        const double gap = scale(5.0, 1000.0);
        for (std::size_t i = 0; i + 1 < count; ++i) add(trace, block[i % block.size()], gap);
        add(trace, elements(1e6, 4e7), gap);
        break;
      }
      case 2: {  // Convolutions: sizes fall along backward.
        trace.model = "convolutions";
        double size = scale(1e5, 1e8);
        for (std::size_t i = 0; i < count; ++i) {
          add(trace, static_cast<std::uint64_t>(size) + 1, scale(10.0, 2000.0));
          if (below(3) == 0) size = std::max(64.0, size / scale(1.5, 4.0));
        }
        break;
      }
      default:
        trace.model = "anything";
        for (std::size_t i = 0; i < count; ++i) {
          add(trace, elements(1, 3e7), below(4) == 0 ? 0.0 : scale(1.0, 3000.0));
        }
    }
    return trace;
  }

  plan::Cluster cluster() {
    plan::Cluster cluster;
    cluster.name = "random";
    cluster.topology = {.machines = static_cast<std::uint32_t>(1 + below(9)),
                        .workers = static_cast<std::uint32_t>(1 + below(8))};
    cluster.intra.link = {.latency_us = scale(1.0, 30.0), .gbps = scale(10.0, 2000.0)};
    cluster.inter.link = {.latency_us = scale(2.0, 100.0), .gbps = scale(0.5, 100.0)};
    if (below(4) == 0) {
      cluster.inter.overrides[below(plan::kCollectives)] =
          plan::LinkModel::Rate{.latency_us = scale(2.0, 100.0), .gbps = scale(0.5, 100.0)};
    }
    if (below(2) == 0) cluster.decode_costs = plan::DecodeCosts::kPerOperation;
    for (const char* const codec : {"randomk", "dgc", "efsign", "fp16"}) {
      cluster.codec_costs[codec] = {curve(10.0, 400.0, 1e-5, 3e-4), curve(1.0, 30.0, 1e-4, 3e-3)};
    }
    return cluster;
  }

  /// A launch, then time in proportion to elements.
  plan::CostCurve curve(double least_us, double most_us, double least_slope, double most_slope) {
    const double launch = scale(least_us, most_us);
    const double slope = scale(least_slope, most_slope);
    const double decode = scale(0.05, 1.0);
    std::vector<plan::CostPoint> points;
    for (const std::uint64_t elements : {1024, 65536, 1048576, 16777216}) {
      const double us = std::max(launch, slope * static_cast<double>(elements));
      points.push_back({elements, us, decode * us});
    }
    return plan::CostCurve(std::move(points));
  }

  std::mt19937_64 random_;
};

}  // namespace gradpress::test
