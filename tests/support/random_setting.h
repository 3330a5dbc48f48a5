// Random models and clusters for property tests: the same seed gives the same on every machine.
#pragma once

#include <random>
#include <string>

#include "plan/cluster.h"
#include "plan/trace.h"

namespace gradpress::test {

/// 1 to `most` tensors of many sizes; a third of the gaps are zero, so that instants coincide.
inline plan::Trace random_trace(std::mt19937_64& random, std::size_t most) {
  plan::Trace trace{.model = "random", .source = "", .forward_us = 0.0, .tensors = {}};
  const std::size_t count = 1 + random() % most;
  if (random() % 2 == 0) trace.forward_us = 100.0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t elements = 1 + random() % (std::uint64_t{1} << (random() % 24));
    trace.tensors.push_back({.name = std::string("t").append(std::to_string(i)),
                             .shape = Shape::flat(elements),
                             .elements = elements,
                             .ready_gap_us = random() % 3 == 0 ? 0.0 : double(random() % 2000)});
  }
  return trace;
}

/// 1 to 9 machines of 1 to 5 workers, with costs for efsign and dgc at both places; half of them
/// count decodes per operation.
inline plan::Cluster random_cluster(std::mt19937_64& random) {
  plan::Cluster cluster;
  cluster.name = "random";
  cluster.topology = {.machines = static_cast<std::uint32_t>(1 + random() % 9),
                      .workers = static_cast<std::uint32_t>(1 + random() % 5)};
  cluster.intra.link = {.latency_us = double(random() % 20), .gbps = double(1 + random() % 200)};
  cluster.inter.link = {.latency_us = double(random() % 60), .gbps = double(1 + random() % 50)};
  if (random() % 2 == 0) {
    cluster.inter.overrides[random() % plan::kCollectives] =
        plan::LinkModel::Rate{.latency_us = 5.0, .gbps = 3.0};
  }
  for (const char* const codec : {"dgc", "efsign"}) {
    for (std::size_t place = 0; place < 2; ++place) {
      const double slope = double(1 + random() % 40) * 1e-4;
      const double base = double(random() % 60);
      std::vector<plan::CostPoint> points;
      for (const std::uint64_t elements : {1024, 65536, 1048576}) {
        const double us = base + slope * double(elements);
        points.push_back({elements, us, us / 8.0});
      }
      cluster.codec_costs[codec][place] = plan::CostCurve(std::move(points));
    }
  }
  if (random() % 2 == 0) cluster.decode_costs = plan::DecodeCosts::kPerOperation;
  return cluster;
}

}  // namespace gradpress::test
