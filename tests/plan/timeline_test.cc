#include "plan/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "plan/tree.h"
#include "support/random_setting.h"
#include "support/reference_timeline.h"

namespace gradpress::plan {
namespace {

Option option_of(std::string_view text) {
  const auto option = parse_option(text);
  EXPECT_TRUE(option.has_value()) << option.error().to_string();
  return option.value_or(Option());
}

Strategy random_strategy(std::mt19937_64& random, const std::vector<Option>& options,
                         std::size_t tensors, bool fused) {
  Strategy strategy{.choices = {}, .buckets = Buckets::singles(tensors)};
  if (fused) {
    const std::uint32_t count = 1 + static_cast<std::uint32_t>(random() % tensors);
    for (auto& bucket : strategy.buckets.of_tensor) {
      bucket = static_cast<std::uint32_t>(random() % count);
    }
    // Number the buckets that have members from 0.
    std::vector<std::uint32_t> used = strategy.buckets.of_tensor;
    std::ranges::sort(used);
    used.erase(std::unique(used.begin(), used.end()), used.end());
    for (auto& bucket : strategy.buckets.of_tensor) {
      bucket = static_cast<std::uint32_t>(std::ranges::find(used, bucket) - used.begin());
    }
    strategy.buckets.count = static_cast<std::uint32_t>(used.size());
  }
  std::vector<Choice> of_bucket(strategy.buckets.count);
  for (Choice& choice : of_bucket) choice.option = options[random() % options.size()];
  for (const std::uint32_t bucket : strategy.buckets.of_tensor) {
    strategy.choices.push_back(of_bucket[bucket]);
  }
  return strategy;
}

class AgainstReference : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Fusion, AgainstReference, ::testing::Bool(), [](const auto& param_info) {
  return param_info.param ? "Buckets" : "Singles";
});

TEST_P(AgainstReference, EverySpanOfRandomStrategiesAgrees) {
  const auto options = OptionTree(Restrictions{}).options();
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    std::mt19937_64 random(seed);
    const Trace trace = test::random_trace(random, 24);
    const Cluster cluster = test::random_cluster(random);
    const std::vector<codec::Spec> codecs = {
        *codec::parse_spec(random() % 2 == 0 ? "efsign" : "dgc:0.01")};
    const Setting setting{trace, cluster, codecs};
    const Strategy strategy = random_strategy(random, options, trace.tensors.size(), GetParam());
    std::vector<std::string> texts;
    for (const Choice& choice : strategy.choices) texts.push_back(to_text(choice.option));
    const auto expected =
        test::reference_timeline(trace, cluster, codecs[0], texts, strategy.buckets.of_tensor);
    const Timeline timeline = predict(setting, strategy);
    const double tolerance = 1e-9 * expected.iteration_us + 1e-9;
    ASSERT_NEAR(timeline.iteration_us, expected.iteration_us, tolerance) << "seed " << seed;
    ASSERT_NEAR(predict_us(setting, strategy), expected.iteration_us, tolerance) << "seed " << seed;
    ASSERT_EQ(timeline.spans.size(), expected.spans.size()) << "seed " << seed;
    // Ends may coincide: compare lane by lane, where order is a matter of definition.
    for (const Lane lane : kAllLanes) {
      std::vector<Span> got;
      std::vector<test::ReferenceSpan> wanted;
      std::ranges::copy_if(timeline.spans, std::back_inserter(got),
                           [&](const Span& span) { return span.lane == lane; });
      std::ranges::copy_if(expected.spans, std::back_inserter(wanted),
                           [&](const auto& span) { return span.lane == to_text(lane); });
      ASSERT_EQ(got.size(), wanted.size()) << "seed " << seed << " lane " << to_text(lane);
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i].start_us, wanted[i].start_us, tolerance) << "seed " << seed;
        ASSERT_NEAR(got[i].end_us, wanted[i].end_us, tolerance) << "seed " << seed;
        ASSERT_EQ(got[i].tensor, wanted[i].tensor) << "seed " << seed;
        const std::string what =
            got[i].kind == SpanKind::kBackward
                ? "backward"
                : to_text(strategy.choices[got[i].tensor].option.actions()[got[i].action]);
        ASSERT_EQ(what, wanted[i].what) << "seed " << seed;
      }
    }
  }
}

TEST_P(AgainstReference, ProbesAndRerunsEqualAFullRun) {
  const auto options = OptionTree(Restrictions{}).options();
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const Trace trace = test::random_trace(random, 60);
    const Cluster cluster = test::random_cluster(random);
    const std::vector<codec::Spec> codecs = {*codec::parse_spec("efsign")};
    const Setting setting{trace, cluster, codecs};
    Strategy strategy = random_strategy(random, options, trace.tensors.size(), GetParam());
    Simulator simulator(trace, strategy.buckets);
    (void)simulator.run(PricedStrategy(setting, strategy).work());
    for (int change = 0; change < 10; ++change) {
      const auto bucket = static_cast<std::uint32_t>(random() % strategy.buckets.count);
      const Option& option = options[random() % options.size()];
      std::size_t first = trace.tensors.size();
      for (std::size_t i = trace.tensors.size(); i-- > 0;) {
        if (strategy.buckets.of_tensor[i] != bucket) continue;
        strategy.choices[i].option = option;
        first = i;
      }
      const PricedStrategy priced(setting, strategy);
      Simulator fresh(trace, strategy.buckets);
      const double expected = fresh.run(priced.work());
      ASSERT_EQ(simulator.probe(priced.work(), first, Simulator::kNever), expected)
          << "seed " << seed;
      ASSERT_EQ(simulator.probe(priced.work(), first, expected * 1.001 + 1.0), expected);
      // An early end is allowed only where the limit is really missed.
      const double missed = simulator.probe(priced.work(), first, expected * 0.9);
      ASSERT_TRUE(missed == expected || missed == Simulator::kNever);
      ASSERT_EQ(simulator.rerun(priced.work(), first), expected) << "seed " << seed;
    }
  }
}

TEST(Timeline, PartsOfAnIterationAddUp) {
  const auto options = OptionTree(Restrictions{}).options();
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const Trace trace = test::random_trace(random, 24);
    const Cluster cluster = test::random_cluster(random);
    const std::vector<codec::Spec> codecs = {*codec::parse_spec("efsign")};
    const Strategy strategy = random_strategy(random, options, trace.tensors.size(), false);
    const Timeline timeline = predict({trace, cluster, codecs}, strategy);
    EXPECT_NEAR(timeline.iteration_us,
                timeline.forward_us + timeline.backward_us + timeline.exposed_comm_us +
                    timeline.exposed_codec_us,
                1e-6 * timeline.iteration_us)
        << "seed " << seed;
    if (timeline.spans.empty()) continue;
    // The critical path is seamless: from 0 to the end, each span begins where one before ended.
    const auto& path = timeline.critical_path;
    ASSERT_FALSE(path.empty());
    EXPECT_EQ(timeline.spans[path.front()].start_us, 0.0) << "seed " << seed;
    EXPECT_DOUBLE_EQ(timeline.spans[path.back()].end_us + timeline.forward_us,
                     timeline.iteration_us);
    for (std::size_t i = 1; i < path.size(); ++i) {
      EXPECT_EQ(timeline.spans[path[i]].start_us, timeline.spans[path[i - 1]].end_us)
          << "seed " << seed;
    }
    for (const Bubble& bubble : timeline.bubbles) EXPECT_LT(bubble.start_us, bubble.end_us);
  }
}

/// By pencil and paper: 2 machines × 2 workers, one tensor of 1000 elements.
TEST(Timeline, AgreesWithPencilAndPaper) {
  Cluster cluster;
  cluster.topology = {.machines = 2, .workers = 2};
  cluster.intra.link = {.latency_us = 10, .gbps = 8};   // 0.001 µs per byte
  cluster.inter.link = {.latency_us = 100, .gbps = 4};  // 0.002 µs per byte
  cluster.codec_costs["efsign"][0] = CostCurve({{1, 7.0, 3.0}});
  const std::vector<codec::Spec> codecs = {*codec::parse_spec("efsign")};
  const Trace trace{
      .model = "m", .source = "", .forward_us = 5.0, .tensors = {{"a", Shape{1000}, 1000, 50.0}}};
  const auto iteration = [&](std::string_view text) {
    const Strategy strategy{.choices = {{option_of(text)}}, .buckets = Buckets::singles(1)};
    return predict({trace, cluster, codecs}, strategy).iteration_us;
  };
  // Flat ring of 4: 2·3·100 + 2·3/4·4000·0.002.
  EXPECT_NEAR(iteration("allreduce@flat"), 55 + 600 + 12, 1e-9);
  // Intra: 10 + 1/2·4000·0.001 = 12, 500 left; inter: 2·100 + 2·1/2·2·2000·0.002 = 208; back: 10 +
  // 2000·0.001.
  EXPECT_NEAR(iteration("reduce-scatter@intra1 > allreduce@inter > allgather@intra2"),
              55 + 12 + 208 + 12, 1e-9);
  // The same with the codec between machines: payload(500) = 4·16 + 4 = 68, two workers share the
  // card, 100 + 1·2·68·0.002; two payloads are decoded.
  EXPECT_NEAR(iteration("reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@device > "
                        "allgather@intra2"),
              55 + 12 + 7 + 100.272 + 6 + 12, 1e-9);
  // Gather to the root: payload(1000) = 132; 10 + 132·0.001, the root holds 2 payloads; inter
  // all-gather of 2 payloads, one sender: 100 + 264·0.002, 4 payloads; 4 decodes; broadcast of raw.
  EXPECT_NEAR(iteration("Comp@device > gather@intra1 > allgather@inter > Decomp@device > "
                        "broadcast@intra2"),
              55 + 7 + 10.132 + 100.528 + 12 + 14, 1e-9);
  // Flat all-to-all: 3·100 + 2·2/4·132·0.002; 4 payloads of 250; all-gather of them, payload(250) =
  // 36: 3·100 + 3·144·0.002; 4 decodes.
  EXPECT_NEAR(iteration("Comp@device > alltoall@flat > allgather@flat > Decomp@device"),
              55 + 7 + 300.264 + 300.864 + 12, 1e-9);
}

/// The decodes of the options above: 2, 4 and 4 payloads of 3 µs each, or 3 µs at once.
TEST(Timeline, CountsADecodePerPayloadOrPerOperation) {
  Cluster cluster;
  cluster.topology = {.machines = 2, .workers = 2};
  cluster.intra.link = cluster.inter.link = {.latency_us = 10, .gbps = 8};
  cluster.codec_costs["efsign"][0] = CostCurve({{1, 7.0, 3.0}});
  const std::vector<codec::Spec> codecs = {*codec::parse_spec("efsign")};
  const Trace trace{
      .model = "m", .source = "", .forward_us = 0.0, .tensors = {{"a", Shape{1000}, 1000, 50.0}}};
  for (const auto& [text, payloads] :
       {std::pair{"reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@device > "
                  "allgather@intra2",
                  2.0},
        {"Comp@device > gather@intra1 > allgather@inter > Decomp@device > broadcast@intra2", 4.0},
        {"Comp@device > alltoall@flat > allgather@flat > Decomp@device", 4.0}}) {
    const Strategy strategy{.choices = {{option_of(text)}}, .buckets = Buckets::singles(1)};
    cluster.decode_costs = DecodeCosts::kPerPayload;
    const double each = predict_us({trace, cluster, codecs}, strategy);
    cluster.decode_costs = DecodeCosts::kPerOperation;
    const double once = predict_us({trace, cluster, codecs}, strategy);
    EXPECT_NEAR(each - once, (payloads - 1.0) * 3.0, 1e-9) << text;
  }
}

TEST(Timeline, OneWorkerHasNothingToSend) {
  Cluster cluster;
  cluster.intra.link = cluster.inter.link = {.latency_us = 10, .gbps = 1};
  const Trace trace{
      .model = "m", .source = "", .forward_us = 0.0, .tensors = {{"a", Shape{1000}, 1000, 50.0}}};
  for (const char* const text :
       {"allreduce@flat", "reduce-scatter@intra1 > allreduce@inter > allgather@intra2"}) {
    const Strategy strategy{.choices = {{option_of(text)}}, .buckets = Buckets::singles(1)};
    EXPECT_EQ(predict_us({trace, cluster, {}}, strategy), 50.0) << text;
  }
}

/// Low rank: 4·n·r bytes in one step, 4·m·r in the other; the mean of both.
TEST(Timeline, AcpSgdIsTheMeanOfItsTwoSteps) {
  Cluster cluster;
  cluster.topology = {.machines = 4, .workers = 1};
  cluster.inter.link = {.latency_us = 0, .gbps = 8};
  cluster.codec_costs["acpsgd"][0] = CostCurve({{1, 10.0, 5.0}});
  cluster.codec_costs["powersgd"][0] = CostCurve({{1, 10.0, 5.0}});
  const std::vector<codec::Spec> codecs = {*codec::parse_spec("acpsgd:4"),
                                           *codec::parse_spec("powersgd:4")};
  const Trace trace{.model = "m",
                    .source = "",
                    .forward_us = 0.0,
                    .tensors = {{"a", Shape{1000, 200}, 200'000, 50.0}}};
  const Setting setting{trace, cluster, codecs};
  const Strategy acp{.choices = {{option_of("Comp@device > allreduce@flat > Decomp@device"), 0}},
                     .buckets = Buckets::singles(1)};
  const double p = 2.0 * 3 / 4 * 4 * 1000 * 4 * 0.001;
  const double q = 2.0 * 3 / 4 * 4 * 200 * 4 * 0.001;
  EXPECT_NEAR(predict(setting, acp, 0).iteration_us, 65 + p, 1e-9);
  EXPECT_NEAR(predict(setting, acp, 1).iteration_us, 65 + q, 1e-9);
  EXPECT_NEAR(predict_us(setting, acp), 65 + (p + q) / 2, 1e-9);
  const Strategy power{.choices = {{option_of("Comp@device > allreduce@flat > Comp@device > "
                                              "allreduce@flat > Decomp@device"),
                                    1}},
                       .buckets = Buckets::singles(1)};
  EXPECT_NEAR(predict_us(setting, power), 75 + p + q, 1e-9);
}

/// 10 µs of launch and 1 µs per 1000 elements at rank 4.
Cluster cluster_with_ranks() {
  Cluster cluster;
  cluster.name = "ranks";
  cluster.topology = {.machines = 4, .workers = 1};
  cluster.inter.link = {.latency_us = 0, .gbps = 8};
  cluster.codec_costs["acpsgd"][0] = CostCurve({{1000, 10.0, 10.0}, {1'001'000, 1010.0, 510.0}});
  return cluster;
}

TEST(RankCosts, GrowWithTheRankWhereOneRankWasMeasured) {
  const Cluster cluster = cluster_with_ranks();
  const auto at = [&](const char* codec, std::uint64_t rank) {
    return curves_of(cluster, *codec::parse_spec(codec)).encode_us(Place::kDevice, 501'000, rank);
  };
  EXPECT_NEAR(at("acpsgd:4", 4), 510.0, 1e-9);
  EXPECT_NEAR(at("acpsgd:256", 256), 10.0 + 500.0 * 64.0, 1e-6);
  EXPECT_NEAR(at("acpsgd:1", 1), 10.0 + 500.0 / 4.0, 1e-9);
  // A matrix of 100 rows has no rank above 100.
  const std::vector<codec::Spec> codecs = {*codec::parse_spec("acpsgd:256")};
  const Trace trace{.model = "m",
                    .source = "",
                    .forward_us = 0.0,
                    .tensors = {{"a", Shape{100, 5010}, 501'000, 50.0}}};
  const Strategy strategy{
      .choices = {{option_of("Comp@device > allreduce@flat > Decomp@device"), 0}},
      .buckets = Buckets::singles(1)};
  double codec_us = 0.0;
  for (const Span& span : predict({trace, cluster, codecs}, strategy).spans) {
    if (span.kind == SpanKind::kEncode) codec_us += span.end_us - span.start_us;
  }
  EXPECT_NEAR(codec_us, 10.0 + 500.0 * 25.0, 1e-6);
}

TEST(RankCosts, AreInterpolatedBetweenMeasuredRanks) {
  Cluster cluster = cluster_with_ranks();
  cluster.codec_costs["acpsgd:32"][0] = CostCurve({{1000, 38.0, 10.0}, {1'001'000, 2438.0, 510.0}});
  const auto at = [&](std::uint64_t rank) {
    return curves_of(cluster, *codec::parse_spec("acpsgd:8"))
        .encode_us(Place::kDevice, 1'001'000, rank);
  };
  EXPECT_NEAR(at(4), 1010.0, 1e-9);
  EXPECT_NEAR(at(18), (1010.0 + 2438.0) / 2.0, 1e-9);
  EXPECT_NEAR(at(32), 2438.0, 1e-9);
  EXPECT_NEAR(at(60), 2438.0 + 1428.0, 1e-9);
  EXPECT_GT(at(1), 0.0);
  // A higher rank that was measured as the quicker one makes nothing quicker beyond it.
  cluster.codec_costs["acpsgd:64"][0] = CostCurve({{1000, 1.0, 1.0}});
  EXPECT_GE(at(1000), 1.0);
}

TEST(RankCosts, SayWhereTheyAreExtrapolated) {
  Cluster cluster = cluster_with_ranks();
  const Trace trace{.model = "m",
                    .source = "",
                    .forward_us = 0.0,
                    .tensors = {{"a", Shape{512, 512}, 262'144, 50.0}}};
  const auto said = [&](const char* codec) {
    const std::vector<codec::Spec> codecs = {*codec::parse_spec(codec)};
    const auto sentences = extrapolated_costs(cluster, codecs, trace.tensors);
    return sentences.empty() ? std::string() : sentences.front();
  };
  EXPECT_EQ(said("acpsgd:4"), "");
  EXPECT_EQ(said("acpsgd:256"),
            "acpsgd:256: cluster ranks has costs at rank 4; those at rank 256 are extrapolated. "
            "Measure them: gradpress profile --codecs acpsgd:256");
  EXPECT_NE(said("acpsgd:2"), "");
  EXPECT_EQ(said("efsign"), "");
  cluster.codec_costs["acpsgd:512"] = cluster.codec_costs["acpsgd"];
  EXPECT_EQ(said("acpsgd:256"), "");
}

TEST(Bound, FollowsItsDefinition) {
  const Trace trace{.model = "m",
                    .source = "",
                    .forward_us = 3.0,
                    .tensors = {{"a", Shape{1}, 1, 10.0}, {"b", Shape{1}, 1, 20.0}}};
  const std::vector<Loads> least = {{0, 0, 5, 100}, {0, 0, 40, 7}};
  // inter: max(30 + 7, 10 + 107); intra: max(30 + 40, 10 + 45).
  EXPECT_EQ(bound_us(trace, least), 3.0 + 117.0);
  EXPECT_EQ(bound_us(trace, std::vector<Loads>(2)), 3.0 + 30.0);
}

}  // namespace
}  // namespace gradpress::plan
