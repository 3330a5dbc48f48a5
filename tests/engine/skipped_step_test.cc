// A step with NaN anywhere counts for nothing: every rank knows, and keeps all as it was.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine_workers.h"
#include "gradpress/codec.h"

namespace gradpress {
namespace {

using test::alike;
using test::gradients_of;
using test::kWorkers;
using test::on_every_rank;
using test::small_model;
using Gradients = test::EngineGradients;

constexpr unsigned kBefore = 3;  ///< good steps before the bad one
constexpr unsigned kAfter = 3;   ///< and after

struct Bad {
  unsigned rank = 0;
  std::size_t tensor = 0;
  std::size_t element = 0;
  float value = std::numeric_limits<float>::quiet_NaN();
};

/// What one rank saw.
struct Seen {
  std::vector<Gradients> results = {};              ///< of the good steps
  std::vector<std::vector<std::byte>> states = {};  ///< before the bad step, after it, at the end
  std::optional<bool> finite = {};                  ///< of the bad step
  std::uint64_t step_number = 0;                    ///< of the step after it
};

/// Good steps, with a bad one in their middle if there is one. Empty: the engine refused.
std::vector<Seen> run(const EngineOptions& options, const std::optional<Bad>& bad) {
  std::vector<Seen> seen(kWorkers);
  const auto failures = on_every_rank(alike(options), [&](unsigned rank, Engine& engine) {
    Seen& mine = seen[rank];
    for (unsigned step = 0; step < kBefore + kAfter; ++step) {
      if (step == kBefore) mine.states.push_back(engine.checkpoint());
      if (step == kBefore && bad) {
        Gradients spoilt = gradients_of(rank, 1000);
        if (rank == bad->rank) spoilt[bad->tensor][bad->element] = bad->value;
        const auto skipped = test::run_step(engine, spoilt);
        ASSERT_TRUE(skipped.has_value()) << skipped.error().to_string();
        mine.finite = skipped->finite;
        mine.states.push_back(engine.checkpoint());
      }
      Gradients& gradients = mine.results.emplace_back(gradients_of(rank, step));
      const auto done = test::run_step(engine, gradients);
      ASSERT_TRUE(done.has_value()) << done.error().to_string();
      EXPECT_TRUE(done->finite) << "step " << step;
      if (step == kBefore) mine.step_number = done->step;
    }
    mine.states.push_back(engine.checkpoint());
  });
  if (!failures[0].is_ok()) {
    EXPECT_EQ(failures[0].code(), Code::kInvalidArgument) << failures[0].to_string();
    return {};
  }
  return seen;
}

/// The first thing that the bad step left behind; empty: nothing.
std::string trace_of(const std::vector<Seen>& with, const std::vector<Seen>& without) {
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    const Seen& a = with[rank];
    const Seen& b = without[rank];
    const std::string who = "rank " + std::to_string(rank) + ": ";
    if (a.states.size() != 3 || b.states.size() != 2) return who + "did not come to the end";
    if (a.finite != false) return who + "took the bad step for a good one";
    if (a.states[0] != b.states[0]) return who + "two equal runs differ before the bad step";
    if (a.states[1] != a.states[0]) return who + "the state is not what it was before the bad step";
    if (a.step_number != kBefore) return who + "the bad step was counted";
    for (std::size_t step = 0; step < a.results.size(); ++step) {
      if (!test::same_bits(a.results[step], b.results[step])) {
        return who + "step " + std::to_string(step) + " has another result";
      }
    }
    if (a.states[2] != b.states[1]) return who + "the state at the end is another one";
  }
  return {};
}

/// Places that take turns: every tensor (two are raw in every plan here), every rank.
Bad place(unsigned number) {
  const std::size_t tensor = number % small_model().size();
  constexpr std::array<float, 3> kValues = {std::numeric_limits<float>::quiet_NaN(),
                                            std::numeric_limits<float>::infinity(),
                                            -std::numeric_limits<float>::infinity()};
  return {.rank = (number / 2) % kWorkers,
          .tensor = tensor,
          .element = number % small_model()[tensor].shape.elements(),
          .value = kValues[number % kValues.size()]};
}

std::vector<std::optional<MomentumCorrection>> momentum_modes() {
  return {std::nullopt, MomentumCorrection{.momentum = 0.9},
          MomentumCorrection{.momentum = 0.5, .nesterov = true, .masking = false, .clip_norm = 20}};
}

/// Runs it for every way of momentum. Returns how many engines took the options.
unsigned expect_no_trace(EngineOptions options, const std::string& what) {
  static unsigned number = 0;
  unsigned runs = 0;
  for (const auto& momentum : momentum_modes()) {
    options.momentum = momentum;
    const Bad bad = place(number++);
    const std::vector<Seen> without = run(options, std::nullopt);
    if (without.empty()) continue;
    ++runs;
    EXPECT_EQ(trace_of(run(options, bad), without), "")
        << what << ", momentum " << (momentum ? momentum->momentum : 0.0) << ", bad: tensor "
        << bad.tensor << " on rank " << bad.rank << ", value " << bad.value;
  }
  return runs;
}

class SkippedStep : public testing::TestWithParam<std::string> {};
class SkippedStepWithFeedback : public testing::TestWithParam<std::string> {};
class SkippedStepByPlans : public testing::TestWithParam<std::string> {};

TEST_P(SkippedStep, LeavesNoTraceByTheEnginesOwnPlan) {
  for (const bool pipelining : {true, false}) {
    EXPECT_EQ(expect_no_trace({.codec = GetParam(), .pipelining = pipelining}, GetParam()), 3U);
  }
}

TEST_P(SkippedStepWithFeedback, LeavesNoTrace) {
  EXPECT_EQ(expect_no_trace({.codec = GetParam(), .feedback = true}, GetParam()), 3U);
}

TEST_P(SkippedStepByPlans, LeavesNoTrace) {
  const char* const longest =
      "Comp@device > gather@intra1 > Decomp@device > Comp@device > allgather@inter > "
      "Decomp@device > Comp@device > broadcast@intra2 > Decomp@device";
  unsigned runs = 0;
  for (const char* const option :
       {// indivisible
        "Comp@device > allgather@flat > Decomp@device",
        "Comp@device > gather@flat > Decomp@device > Comp@device > broadcast@flat > Decomp@device",
        // divisible
        "Comp@host > alltoall@flat > Decomp@host > Comp@host > allgather@flat > Decomp@host",
        "Comp@host > alltoall@flat > Decomp@host > allgather@flat",
        // hierarchical
        "reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@device > allgather@intra2",
        "reduce@intra1 > Comp@device > allgather@inter > Decomp@device > broadcast@intra2", longest,
        // payloads that collectives sum
        "Comp@device > allreduce@flat > Decomp@device",
        "Comp@device > reduce-scatter@flat > Decomp@device > allgather@flat",
        "Comp@device > allreduce@flat > Comp@device > allreduce@flat > Decomp@device"}) {
    runs += expect_no_trace({.plan = test::plan_by_hand(GetParam(), option)},
                            GetParam() + " by " + option);
  }
  EXPECT_GE(runs, 3U);
}

template <class Fits>
std::vector<std::string> codecs_that(Fits fits) {
  std::vector<std::string> codecs;
  for (const CodecHelp& help : codec_help()) {
    if (fits(help.example)) codecs.emplace_back(help.example);
  }
  return codecs;
}

std::string name_of(const testing::TestParamInfo<std::string>& test) {
  std::string name = test.param;
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Codecs, SkippedStep,
                         testing::ValuesIn(codecs_that([](std::string_view) { return true; })),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Codecs, SkippedStepWithFeedback,
                         testing::ValuesIn(codecs_that([](std::string_view codec) {
                           return (*make_codec(codec))->traits().supports_feedback;
                         })),
                         name_of);
// Raw plans have a test of their own.
INSTANTIATE_TEST_SUITE_P(Codecs, SkippedStepByPlans,
                         testing::ValuesIn(codecs_that([](std::string_view codec) {
                           return codec != "none";
                         })),
                         name_of);

TEST(SkippedStep, LeavesNoTraceInRawPlans) {
  for (const char* const option :
       {"allreduce@flat", "reduce-scatter@flat > allgather@flat", "reduce@flat > broadcast@flat",
        "reduce-scatter@intra1 > allreduce@inter > allgather@intra2",
        "reduce@intra1 > allreduce@inter > broadcast@intra2"}) {
    EXPECT_EQ(expect_no_trace({.plan = test::plan_by_hand("none", option)}, option), 3U);
  }
}

TEST(SkippedStep, LeavesFactorsOfBothBucketingsInStep) {
  Plan plan = test::plan_by_hand("acpsgd:2", "Comp@device > allreduce@flat > Decomp@device");
  plan.alternates = true;
  for (PlannedTensor& tensor : plan.tensors) {
    if (tensor.bucket_q > 0) tensor.bucket_q = 1;
  }
  for (unsigned i = 0; i < small_model().size(); ++i) {
    EXPECT_EQ(expect_no_trace({.plan = plan}, "acpsgd in two bucketings"), 3U);
  }
}

TEST(SkippedStep, CountsSumsOfMomentumThatLeaveTheRange) {
  // Every gradient is in range; only the momentum after the mean is not.
  const EngineOptions options{.codec = "efsign", .momentum = MomentumCorrection{.momentum = 0.9}};
  const auto failures = on_every_rank(alike(options), [&](unsigned rank, Engine& engine) {
    const auto step = [&](float bias) {
      Gradients gradients = gradients_of(rank, 0);
      gradients[1].assign(gradients[1].size(), bias);
      const auto done = test::run_step(engine, gradients);
      EXPECT_TRUE(done.has_value());
      return done && done->finite;
    };
    EXPECT_TRUE(step(0.9F * kGradientLimit));
    const std::vector<std::byte> before = engine.checkpoint();
    EXPECT_FALSE(step(0.9F * kGradientLimit));
    EXPECT_EQ(engine.checkpoint(), before);
    EXPECT_TRUE(step(0.0F));
  });
  test::expect_all_ok(failures);
}

TEST(SkippedStep, KeepsWhatAPlanChangeHandedOver) {
  // The residual goes with the next step's gradient: of a raw plan, and of a sum before an encode.
  for (const char* const next : {"none", "efsign"}) {
    const Plan after =
        std::string(next) == "none"
            ? test::plan_by_hand("none", "allreduce@flat")
            : test::plan_by_hand("efsign",
                                 "reduce-scatter@intra1 > Comp@device > allgather@inter > "
                                 "Decomp@device > allgather@intra2");
    for (const auto& momentum : momentum_modes()) {
      const EngineOptions options{.codec = "topk:0.05", .momentum = momentum};
      const auto failures = on_every_rank(alike(options), [&](unsigned rank, Engine& engine) {
        Gradients first = gradients_of(rank, 0);
        ASSERT_TRUE(test::run_step(engine, first).has_value());
        ASSERT_TRUE(engine.set_plan(after).is_ok());
        const std::vector<std::byte> before = engine.checkpoint();
        Gradients spoilt = gradients_of(rank, 1);
        if (rank == 2) spoilt[3][1] = std::numeric_limits<float>::quiet_NaN();
        const auto skipped = test::run_step(engine, spoilt);
        ASSERT_TRUE(skipped.has_value());
        EXPECT_FALSE(skipped->finite);
        EXPECT_EQ(engine.checkpoint(), before);
        Gradients second = gradients_of(rank, 1);
        const auto done = test::run_step(engine, second);
        ASSERT_TRUE(done.has_value());
        EXPECT_TRUE(done->finite);
        EXPECT_EQ(done->step, 1U);
      });
      test::expect_all_ok(failures);
    }
  }
}

}  // namespace
}  // namespace gradpress
