#include "support/option_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plan/fit.h"
#include "plan/tree.h"
#include "support/close_call.h"
#include "support/gradient.h"

namespace gradpress::test {
namespace {

using Gradients = std::vector<std::vector<float>>;

constexpr comm::Topology kTwoByTwo{.machines = 2, .workers_per_machine = 2};
constexpr comm::Topology kTwoByThree{.machines = 2, .workers_per_machine = 3};
constexpr std::uint64_t kSteps = 3;

Gradients grid_gradients(std::size_t elements, unsigned workers, std::uint64_t step) {
  Gradients all;
  for (unsigned w = 0; w < workers; ++w) {
    all.push_back(grid_gradient(elements, 1 + 100 * step + w));
  }
  return all;
}

std::vector<plan::Option> paper_tree(bool host = false) {
  return plan::OptionTree({.host = host}).options();
}

std::vector<plan::Option> extended_tree() {
  return plan::OptionTree({.host = false, .extended = true}).options();
}

bool fits(const plan::Option& option, const std::string& codec, const Shape& shape,
          const comm::Topology& topology) {
  return plan::why_not(option, plan::codec_fit(*codec::parse_spec(codec)), shape,
                       {.machines = topology.machines, .workers = topology.workers_per_machine})
      .empty();
}

/// The largest |workers × Σ means + residuals − Σ gradients| over the elements.
double lost_after_steps(const OptionModelSpec& spec) {
  OptionModel model(spec);
  const unsigned workers = spec.topology.workers();
  std::vector<double> balance(spec.shape.elements(), 0.0);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const Gradients gradients = grid_gradients(balance.size(), workers, step);
    const std::vector<float> mean = model.step(gradients, step);
    for (std::size_t i = 0; i < balance.size(); ++i) {
      balance[i] += static_cast<double>(workers) * mean[i];
      for (const auto& gradient : gradients) balance[i] -= gradient[i];
    }
  }
  EXPECT_TRUE(model.conserves()) << plan::to_text(spec.option);
  const std::vector<double> unapplied = model.unapplied();
  double most = 0.0;
  for (std::size_t i = 0; i < balance.size(); ++i) {
    most = std::max(most, std::fabs(balance[i] + unapplied[i]));
  }
  return most;
}

TEST(OptionModel, GivesTheMeanForEveryRawOption) {
  for (const comm::Topology& topology : {kTwoByTwo, kTwoByThree}) {
    for (const std::uint64_t elements : {1U, 3U, 37U}) {
      const Gradients gradients = grid_gradients(elements, topology.workers(), 0);
      unsigned raw = 0;
      for (const plan::Option& option : paper_tree()) {
        if (!option.is_raw()) continue;
        ++raw;
        OptionModel model({.option = option,
                           .codec = "topk:0.1",
                           .shape = Shape::flat(elements),
                           .topology = topology});
        const std::vector<float> mean = model.step(gradients, 0);
        for (std::size_t i = 0; i < elements; ++i) {
          double sum = 0.0;
          for (const auto& gradient : gradients) sum += gradient[i];
          ASSERT_EQ(mean[i], static_cast<float>(sum / topology.workers()))
              << plan::to_text(option) << ", element " << i << " of " << elements;
        }
      }
      EXPECT_EQ(raw, 9U);
    }
  }
}

TEST(OptionModel, LosesNothingInAnyOfThePapersOptionsWithTopK) {
  for (const plan::Option& option : paper_tree(/*host=*/true)) {
    // Sums on the grid are exact, and topk moves values as they are; 2×2 divides by a power of two.
    ASSERT_EQ(lost_after_steps({.option = option,
                                .codec = "topk:0.2",
                                .shape = Shape::flat(37),
                                .topology = kTwoByTwo,
                                .seed = 7}),
              0.0)
        << plan::to_text(option);
  }
}

TEST(OptionModel, LosesNothingButRoundingInAnyPathWithEveryKindOfCodec) {
  // Means are rounded to float, residuals are floats: a few ulp of values below 128 a step.
  constexpr double kRounding = 0x1.0p-14;
  unsigned paths = 0;
  for (const plan::Option& option : extended_tree()) {
    for (const std::string codec : {"topk:0.2", "redsync:0.2:exact=0:trimmed=0:reuse=1:probes=4",
                                    "efsign", "qsgd:4", "randomk:0.3", "acpsgd:2", "powersgd:2"}) {
      const Shape shape{7, 5};
      if (!fits(option, codec, shape, kTwoByThree)) continue;
      ++paths;
      ASSERT_LT(lost_after_steps({.option = option,
                                  .codec = codec,
                                  .shape = shape,
                                  .topology = kTwoByThree,
                                  .seed = 7,
                                  .feedback = option.is_raw() ? std::optional<bool>() : true}),
                kRounding)
          << plan::to_text(option) << " with " << codec;
    }
  }
  EXPECT_GT(paths, 3 * 174U);
}

TEST(OptionModel, StaysCloseToTheMeanInEveryPathWithHalfPrecision) {
  const Gradients gradients = grid_gradients(37, kTwoByThree.workers(), 0);
  for (const plan::Option& option : extended_tree()) {
    if (!fits(option, "fp16", Shape::flat(37), kTwoByThree)) continue;
    OptionModel model(
        {.option = option, .codec = "fp16", .shape = Shape::flat(37), .topology = kTwoByThree});
    const std::vector<float> mean = model.step(gradients, 0);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      double sum = 0.0;
      for (const auto& gradient : gradients) sum += gradient[i];
      // At most three encodes and three sums of payloads, each off by 2^-12 of less than 4.
      ASSERT_NEAR(mean[i], sum / kTwoByThree.workers(), 6 * 4 * 0x1.0p-11) << plan::to_text(option);
    }
  }
}

// So that places, which change no number, need not be multiplied with codecs and shapes.
TEST(Places, AreAllThatTellTheOptionsOfOnePathApart) {
  std::set<std::string> paths;
  std::set<std::string> device;
  for (const plan::Option& option : paper_tree(/*host=*/true)) {
    paths.insert(plan::to_text(option.moved_to(plan::Place::kDevice)));
  }
  for (const plan::Option& option : paper_tree()) device.insert(plan::to_text(option));
  EXPECT_EQ(paths, device);
}

TEST(CloseCall, SeesWhatADecisionHangsOn) {
  const Words words({.seed = 1});
  const auto call = [&](const std::string& codec, const std::vector<float>& x) {
    return closest_call(*codec::parse_spec(codec), x, words);
  };
  EXPECT_DOUBLE_EQ(call("topk:0.5", {4.0F, -3.0F, 2.0F, 1.0F}), 0.25);
  EXPECT_EQ(call("topk:0.5", {4.0F, -3.0F, 3.0F, 1.0F}), 0.0);
  EXPECT_EQ(call("topk:0.5", {4.0F, 0.0F, 0.0F, 0.0F}), INFINITY);
  EXPECT_DOUBLE_EQ(call("efsign", {4.0F, -1.0F}), 0.25);
  EXPECT_EQ(call("efsign", {4.0F, 0.0F}), 0.0);
  EXPECT_EQ(call("fp16", {4.0F, 0.0F}), INFINITY);
  EXPECT_EQ(call("sign", {4.0F, 0.0F, -2.0F}), 0.5);
  // The mean is 4, the largest 8: the only question is how many lie above 6.
  const std::string search = "redsync:0.5:exact=0:trimmed=0:reuse=1:probes=1";
  EXPECT_DOUBLE_EQ(call(search, {8.0F, -5.0F, 2.0F, 1.0F}), 0.125);
  EXPECT_EQ(call(search, {8.0F, -6.0F, 1.0F, 1.0F}), 0.0);
  const double u = words.uniform(0);
  EXPECT_DOUBLE_EQ(call("qsgd:2", {3.0F}), std::min(u, 1.0 - u));
}

}  // namespace
}  // namespace gradpress::test
