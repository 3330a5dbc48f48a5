// best against every other strategy, and every strategy against its bound, on random jobs.
#include <gtest/gtest.h>

#include <string>

#include "plan/planner.h"
#include "plan/search/request.h"
#include "plan/search/space.h"
#include "plan/timeline.h"
#include "support/random_job.h"

namespace gradpress::plan {
namespace {

/// best's search ends this close to the floor: predictions that differ by less are equal.
constexpr double kCloseEnough = 1e-4;
/// The same sums in another order.
constexpr double kRounding = 1e-9;

std::string label(const test::Job& job, std::uint64_t seed, std::string_view what) {
  return std::string("seed ").append(std::to_string(seed)).append(", ").append(job.trace.model) +
         " of " + std::to_string(job.trace.tensors.size()) + " tensors on " +
         std::to_string(job.cluster.topology.machines) + " x " +
         std::to_string(job.cluster.topology.workers) + ", " + codec::to_text(job.codecs[0]) +
         ": " + std::string(what);
}

/// Every strategy without fusion; returns how many were compared.
std::size_t compare_strategies(const test::Job& job, std::uint64_t seed) {
  const Request request{{job.trace, job.cluster, job.codecs}, {}};
  const Buckets singles = Buckets::singles(job.trace.tensors.size());
  const double bound = SearchSpace(request.setting, {}, {}, singles).bound_us();
  double best_us = 0.0;
  std::size_t compared = 0;
  for (const NamedStrategy& named : strategies()) {
    if (named.name == "optimal") continue;
    const auto strategy = named.plan(request);
    if (!strategy) {
      ADD_FAILURE() << label(job, seed, named.name) << ": " << strategy.error().to_string();
      continue;
    }
    const double us = predict_us(request.setting, *strategy);
    EXPECT_GE(us, bound * (1.0 - kRounding)) << label(job, seed, named.name);
    if (named.name == "best") best_us = us;
    EXPECT_GE(us, best_us * (1.0 - kCloseEnough)) << label(job, seed, named.name);
    ++compared;
  }
  return compared;
}

/// A shard's share of `jobs` jobs, so that the cores of a machine divide them.
class Dominance : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  static constexpr std::uint64_t kShards = 4;
  static std::uint64_t jobs(std::uint64_t in_all) {
#ifdef GRADPRESS_SANITIZED
    in_all /= 20;
#endif
    return in_all / kShards;
  }
};
INSTANTIATE_TEST_SUITE_P(Shard, Dominance, ::testing::Range<std::uint64_t>(0, 4));

/// So few tensors that best searches its rivals too.
TEST_P(Dominance, NoStrategyIsFasterThanBestAndNoneIsBelowItsBound) {
  std::size_t compared = 0;
  for (std::uint64_t i = 0; i < jobs(240); ++i) {
    const std::uint64_t seed = 1 + GetParam() + kShards * i;
    compared += compare_strategies(test::JobMaker(seed).make(5, 12), seed);
  }
  EXPECT_GT(compared, 0U);
  std::printf("%zu comparisons\n", compared);
}

TEST_P(Dominance, FusionNeverCostsTimeAndNeverGoesBelowItsBound) {
  for (std::uint64_t i = 0; i < jobs(200); ++i) {
    const std::uint64_t seed = 1 + GetParam() + kShards * i;
    const test::Job job = test::JobMaker(seed).make(5, i % 4 == 0 ? 60 : 12);
    const Setting setting{job.trace, job.cluster, job.codecs};
    const auto single = make_plan(setting, {});
    const auto fused = make_plan(setting, {.fusion = Fusion::kAuto});
    ASSERT_TRUE(single && fused) << label(job, seed, "no plan");
    EXPECT_LE(fused->iteration_us, single->iteration_us * (1.0 + kRounding))
        << label(job, seed, "fusion auto against none");
    EXPECT_GE(fused->iteration_us, fused->bound_us * (1.0 - kRounding))
        << label(job, seed, "bound with fusion");
    EXPECT_LE(fused->bound_us, single->bound_us * (1.0 + kRounding))
        << label(job, seed, "singles are a fusion too");
  }
}

/// Strategies that nothing chose must respect the bounds as well.
TEST_P(Dominance, NoRandomStrategyIsBelowTheBound) {
  const auto options = OptionTree(Restrictions{}).options();
  for (std::uint64_t i = 0; i < jobs(8000); ++i) {
    const std::uint64_t seed = 1 + GetParam() + kShards * i;
    const test::Job job = test::JobMaker(seed).make(1, 12);
    const Setting setting{job.trace, job.cluster, job.codecs};
    const std::size_t tensors = job.trace.tensors.size();
    std::mt19937_64 random(seed);
    const SearchSpace space(setting, {}, {}, Buckets::singles(tensors));
    Strategy single{.choices = {}, .buckets = Buckets::singles(tensors)};
    for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
      single.choices.push_back({.option = options[random() % options.size()]});
    }
    EXPECT_GE(predict_us(setting, single), space.bound_us() * (1.0 - kRounding))
        << label(job, seed, "bound");
    // The same choice for all, so that any neighbours may share a message.
    Strategy fused = single;
    std::uint32_t bucket = 0;
    for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
      if (tensor > 0 && random() % 2 == 0) ++bucket;
      fused.choices[tensor] = single.choices[0];
      fused.buckets.of_tensor[tensor] = bucket;
    }
    fused.buckets.count = bucket + 1;
    EXPECT_GE(predict_us(setting, fused), space.fused_bound_us() * (1.0 - kRounding))
        << label(job, seed, "bound with fusion");
  }
}

/// Neural collaborative filtering: embeddings first in backward, then a small MLP.
TEST(Best, DoesNotLoseOnEmbeddingsBeforeAnMlp) {
  Trace trace{.model = "ncf", .source = {}, .forward_us = 1000.0, .tensors = {}};
  const auto add = [&](std::uint64_t rows, std::uint64_t cols, double gap_us) {
    trace.tensors.push_back({.name = std::string("t").append(std::to_string(trace.tensors.size())),
                             .shape = cols == 1 ? Shape{rows} : Shape{rows, cols},
                             .elements = rows * cols,
                             .ready_gap_us = gap_us});
  };
  add(138'493, 64, 300);
  add(26'744, 64, 100);
  add(138'493, 128, 500);
  add(26'744, 128, 120);
  for (const std::uint64_t width : {256, 128, 64}) {
    add(width, 1, 10);
    add(width, 2 * width, 60);
  }
  add(1, 128, 10);
  add(1, 1, 5);
  Cluster cluster;
  cluster.name = "nvlink, 100 Gb/s";
  cluster.topology = {.machines = 8, .workers = 8};
  cluster.intra.link = {.latency_us = 15, .gbps = 1200};
  cluster.inter.link = {.latency_us = 50, .gbps = 36};
  cluster.decode_costs = DecodeCosts::kPerOperation;
  cluster.codec_costs["randomk"] = {
      CostCurve({{1, 54, 34}, {1 << 20, 54, 34}, {1 << 26, 3456, 2176}}),
      CostCurve(
          {{1024, 16, 7}, {65'536, 110, 22}, {1 << 20, 1236, 285}, {1 << 24, 21'112, 10'068}})};
  EXPECT_GT(
      compare_strategies(
          {.trace = trace, .cluster = cluster, .codecs = {*codec::parse_spec("randomk:0.01")}}, 0),
      0U);
}

}  // namespace
}  // namespace gradpress::plan
