// What a state promises: the four views of its residual agree, a checkpoint continues exactly, and
// a bad gradient leaves no trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "contract/every_codec.h"

namespace gradpress::test {
namespace {

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {{1000}, {1}, {0}, {33}, {40, 26}, {7, 1}, {4, 3, 3, 3}};
  return all;
}

class CodecState : public EveryCodec {
 protected:
  /// One worker after `steps` steps.
  Group run(const Shape& shape, std::uint64_t steps, std::optional<bool> feedback = std::nullopt) {
    Group group({.codec = text(), .shape = shape, .seed = seed_, .feedback = feedback});
    for (std::uint64_t step = 0; step < steps; ++step) expect_step(group, shape, step);
    return group;
  }
  void expect_step(Group& group, const Shape& shape, std::uint64_t step) {
    const Status status = group.step(gradients(shape.elements(), 1, step, seed_), step);
    ASSERT_TRUE(status.is_ok()) << shape.to_string() << ": " << status.to_string();
  }
};
GRADPRESS_FOR_EVERY_CODEC(CodecState);

double l2(const std::vector<float>& values) {
  double squares = 0.0;
  for (const float v : values) squares += double{v} * v;
  return std::sqrt(squares);
}

TEST_P(CodecState, NormIsTheLengthOfTheMaterialisedResidual) {
  for (const Shape& shape : shapes()) {
    Group group = run(shape, 3);
    const double length = l2(group.residual(0));
    EXPECT_NEAR(group.state(0).norm(), length, 1e-5 * length) << shape.to_string();
    if (!group.state(0).has_feedback()) {
      EXPECT_EQ(length, 0.0);
    }
  }
}

TEST_P(CodecState, ScaleMultipliesWhatMaterialiseShows) {
  for (const Shape& shape : shapes()) {
    for (const float factor : {0.5F, 3.0F, -0.7F, 0.0F}) {
      Group group = run(shape, 3);
      const auto before = group.residual(0);
      const double largest = l2(before);
      group.state(0).scale(factor);
      const auto after = group.residual(0);
      for (std::size_t i = 0; i < before.size(); ++i) {
        // A lazy residual is a difference: its rounding is that of the minuend.
        ASSERT_NEAR(after[i], factor * before[i], 1e-5 * std::fabs(factor) * (largest + 1.0))
            << shape.to_string() << " element " << i << " factor " << factor;
      }
      expect_step(group, shape, 3);
    }
  }
}

TEST_P(CodecState, ScalingByAPowerOfTwoScalesThePayloadsOfLaterSteps) {
  // Gradient and residual doubled: everything that is linear in x must double.
  const Shape shape{24, 25};
  Group plain = run(shape, 3);
  Group doubled = run(shape, 3);
  if (!plain.state(0).has_feedback()) return;
  doubled.state(0).scale(2.0F);
  auto grads = gradients(shape.elements(), 1, 3, seed_);
  ASSERT_TRUE(plain.step(grads, 3).is_ok());
  for (float& g : grads[0]) g *= 2.0F;
  ASSERT_TRUE(doubled.step(grads, 3).is_ok());
  for (std::size_t i = 0; i < shape.elements(); ++i) {
    ASSERT_EQ(doubled.results[0][i], 2.0F * plain.results[0][i]) << "element " << i;
  }
}

TEST_P(CodecState, LoadedResidualsAreMaterialisedUnchanged) {
  for (const Shape& shape : shapes()) {
    Group group = run(shape, 2);
    const auto residual = gradients(shape.elements(), 1, 77, seed_).front();
    ASSERT_TRUE(group.state(0).load(residual).is_ok());
    const auto shown = group.residual(0);
    const bool kept = group.state(0).has_feedback();
    EXPECT_EQ(shown, kept ? residual : std::vector<float>(residual.size(), 0.0F));
    expect_step(group, shape, 2);
  }
}

TEST_P(CodecState, LoadRefusesWrongSizesAndNonFiniteValuesAndStaysAsItWas) {
  Group group = run({33}, 2);
  const auto before = group.residual(0);
  const Status wrong = group.state(0).load(std::vector<float>(34, 0.0F));
  EXPECT_EQ(wrong.code(), Code::kInvalidArgument);
  EXPECT_NE(wrong.message().find("33"), std::string::npos) << wrong.message();
  EXPECT_NE(wrong.message().find("34"), std::string::npos) << wrong.message();
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30F}) {
    std::vector<float> residual(33, 0.25F);
    residual[32] = bad;
    EXPECT_EQ(group.state(0).load(residual).code(), Code::kNonFinite);
  }
  EXPECT_EQ(group.residual(0), before);
}

TEST_P(CodecState, ACheckpointContinuesWithTheSameBytes) {
  for (const Shape& shape : shapes()) {
    for (const std::uint64_t steps : {0U, 1U, 2U, 3U}) {
      for (const bool residual_first : {true, false}) {
        SCOPED_TRACE(shape.to_string() + " after " + std::to_string(steps) + " steps");
        Group original = run(shape, steps);
        Group copy({.codec = text(), .shape = shape, .seed = seed_});
        const auto residual = original.residual(0);
        const auto extras = original.state(0).save_extras();
        if (residual_first) {
          ASSERT_TRUE(copy.state(0).load(residual).is_ok());
        }
        const Status status = copy.state(0).load_extras(extras);
        ASSERT_TRUE(status.is_ok()) << status.to_string();
        if (!residual_first) {
          ASSERT_TRUE(copy.state(0).load(residual).is_ok());
        }
        EXPECT_EQ(copy.state(0).save_extras(), extras);
        for (std::uint64_t step = steps; step < steps + 3; ++step) {
          expect_step(original, shape, step);
          expect_step(copy, shape, step);
          ASSERT_EQ(copy.first_round, original.first_round) << "step " << step;
          ASSERT_EQ(copy.sent, original.sent) << "step " << step;
          ASSERT_EQ(copy.results, original.results) << "step " << step;
        }
      }
    }
  }
}

TEST_P(CodecState, RewindTakesAStepBackBitForBit) {
  for (const Shape& shape : shapes()) {
    for (const std::uint64_t steps : {0U, 1U, 2U, 3U}) {
      SCOPED_TRACE(shape.to_string() + " after " + std::to_string(steps) + " steps");
      Group plain = run(shape, steps);
      Group rewound = run(shape, steps);
      const auto residual = rewound.residual(0);
      const auto extras = rewound.state(0).save_extras();
      rewound.state(0).commit();
      rewound.state(0).rewind();
      EXPECT_EQ(rewound.residual(0), residual) << "nothing was done since commit";
      expect_step(rewound, shape, 50);
      rewound.state(0).rewind();
      rewound.state(0).rewind();
      EXPECT_EQ(rewound.residual(0), residual);
      EXPECT_EQ(rewound.state(0).save_extras(), extras);
      for (std::uint64_t step = steps; step < steps + 3; ++step) {
        expect_step(plain, shape, step);
        expect_step(rewound, shape, step);
        ASSERT_EQ(rewound.first_round, plain.first_round) << "step " << step;
        ASSERT_EQ(rewound.sent, plain.sent) << "step " << step;
        ASSERT_EQ(rewound.results, plain.results) << "step " << step;
      }
    }
  }
}

TEST_P(CodecState, SettlingTheResidualChangesNoLaterByte) {
  // materialise, then load of the same: the lazy form must not show.
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.to_string());
    Group lazy = run(shape, 3);
    Group settled = run(shape, 3);
    ASSERT_TRUE(settled.state(0).load(settled.residual(0)).is_ok());
    for (std::uint64_t step = 3; step < 6; ++step) {
      expect_step(lazy, shape, step);
      expect_step(settled, shape, step);
      ASSERT_EQ(settled.sent, lazy.sent) << "step " << step;
    }
  }
}

TEST_P(CodecState, ForeignExtrasAreRefusedAndChangeNothing) {
  for (const Shape& shape : {Shape{40, 26}, Shape{33}}) {
    Group group = run(shape, 3);
    Group twin = run(shape, 3);
    const auto extras = group.state(0).save_extras();
    std::vector<std::vector<std::byte>> garbage;
    for (const std::size_t bytes : {extras.size() + 1, extras.size() + 4, extras.size() * 2 + 3}) {
      garbage.emplace_back(bytes, std::byte{0});
      garbage.emplace_back(bytes, std::byte{0xFF});
    }
    if (!extras.empty()) {
      garbage.emplace_back(extras.size(), std::byte{0xFF});
      garbage.emplace_back(extras.begin(), extras.end() - 1);
      garbage.emplace_back();
    }
    for (const auto& bytes : garbage) {
      const Status status = group.state(0).load_extras(bytes);
      EXPECT_EQ(status.code(), Code::kCorruptPayload)
          << bytes.size() << " B of garbage, own extras have " << extras.size() << " B";
    }
    EXPECT_EQ(group.state(0).save_extras(), extras);
    EXPECT_EQ(group.residual(0), twin.residual(0));
    for (std::uint64_t step = 3; step < 5; ++step) {
      expect_step(group, shape, step);
      expect_step(twin, shape, step);
      EXPECT_EQ(group.sent, twin.sent);
    }
  }
}

TEST_P(CodecState, ANonFiniteGradientNeverEntersTheResidual) {
  const auto codec = *make_codec(text());
  const bool passes_on = text() == "none";
  for (const Shape& shape : {Shape{1000}, Shape{31, 33}, Shape{1}, Shape{35}}) {
    const std::size_t n = shape.elements();
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity(), 1e30F, -kGradientLimit}) {
      for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
        SCOPED_TRACE(shape.to_string() + ", " + std::to_string(bad) + " at " + std::to_string(at));
        Group group = run(shape, 3);
        const auto before = group.residual(0);
        auto grads = gradients(n, 1, 3, seed_);
        grads[0][at] = bad;
        const Status status = group.step(grads, 3);
        if (passes_on) {
          EXPECT_TRUE(status.is_ok() || status.code() == Code::kNonFinite) << status.to_string();
        } else {
          ASSERT_EQ(status.code(), Code::kNonFinite) << status.to_string();
        }
        ASSERT_EQ(group.residual(0), before);
        const auto good = gradients(n, 1, 4, seed_);
        const Status next = group.step(good, 4);
        ASSERT_TRUE(next.is_ok()) << next.to_string();
        if (!group.state(0).has_feedback()) continue;
        const auto rest = group.residual(0);
        const double largest = l2(good[0]) + l2(before);
        for (std::size_t i = 0; i < n; ++i) {
          const double sum = double{group.results[0][i]} + rest[i];
          ASSERT_NEAR(sum, double{good[0][i]} + before[i], 1e-5 * largest) << "element " << i;
        }
      }
    }
  }
}

TEST_P(CodecState, AFailedStepDoesNotChangeLaterChoices) {
  // Parity, flips and reused thresholds count encodes that succeeded.
  const Shape shape{20, 30};
  Group failed = run(shape, 3);
  Group twin = run(shape, 3);
  auto grads = gradients(shape.elements(), 1, 3, seed_);
  grads[0][17] = std::numeric_limits<float>::infinity();
  if (failed.step(grads, 3).is_ok()) return;
  EXPECT_EQ(failed.state(0).save_extras(), twin.state(0).save_extras());
  expect_step(failed, shape, 4);
  expect_step(twin, shape, 4);
  const double largest = *std::max_element(twin.results[0].begin(), twin.results[0].end());
  std::size_t different = 0;
  for (std::size_t i = 0; i < shape.elements(); ++i) {
    if (std::fabs(failed.results[0][i] - twin.results[0][i]) > 1e-4 * largest) ++different;
  }
  EXPECT_LE(different, 1U) << "elements that changed by more than the undo's rounding";
}

TEST_P(CodecState, FeedbackIsRefusedWhereItHasNoMeaning) {
  const auto codec = *make_codec(text());
  const auto state = codec->make_state({.shape = {10}, .feedback = true});
  EXPECT_EQ(state.has_value(), codec->traits().supports_feedback);
  if (!state) {
    EXPECT_EQ(state.error().code(), Code::kInvalidArgument);
  }
  const auto plain = *codec->make_state({.shape = {10}});
  EXPECT_EQ(plain->has_feedback(), codec->traits().needs_feedback);
  EXPECT_EQ(plain->shape(), Shape{10});
}

TEST_P(CodecState, TensorsTooLargeForIndicesAreRefused) {
  const auto codec = *make_codec(text());
  const auto state = codec->make_state({.shape = {std::uint64_t{1} << 32}});
  ASSERT_FALSE(state.has_value());
  EXPECT_EQ(state.error().code(), Code::kInvalidArgument);
  EXPECT_NE(state.error().message().find("4294967295"), std::string::npos);
}

}  // namespace
}  // namespace gradpress::test
