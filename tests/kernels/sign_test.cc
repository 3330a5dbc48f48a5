#include "kernels/sign.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/gradient.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

constexpr float kLimit = 1e17F;

struct Expected {
  std::vector<std::byte> bits;
  std::vector<float> x;
  double positive = 0.0;
  double negative = 0.0;
  std::uint64_t negatives = 0;
};

Expected scalar_encode(const std::vector<float>& g, std::vector<float> x, SignLevels sent) {
  Expected expected{.bits = std::vector<std::byte>((g.size() + 7) / 8), .x = std::move(x)};
  for (std::size_t i = 0; i < g.size(); ++i) {
    float& v = expected.x[i];
    v = g[i] + (v - (std::signbit(v) ? sent.negative : sent.positive));
    if (std::signbit(v)) {
      expected.bits[i / 8] |= std::byte{1} << (i % 8);
      ++expected.negatives;
    }
    (v > 0 ? expected.positive : expected.negative) += v;
  }
  return expected;
}

class Signs : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(Signs);

TEST_P(Signs, EncodeAgreesWithScalarOnEveryTailAndAlignment) {
  const SignLevels sent{.positive = 0.013F, .negative = -0.017F};
  for (std::size_t n = 0; n <= 67; ++n) {
    for (std::size_t offset = 0; offset < 3; ++offset) {
      // Shift the data so that no vector load is aligned; a guard value behind the end must
      // survive.
      auto g = test::gradient(n + offset, n + 1);
      auto x = test::gradient(n + offset + 1, n + 1000);
      const float guard = x.back();
      const std::vector<float> g_part(g.begin() + static_cast<long>(offset), g.end());
      const std::vector<float> x_part(x.begin() + static_cast<long>(offset), x.end() - 1);
      const Expected expected = scalar_encode(g_part, x_part, sent);
      std::vector<std::byte> bits((n + 7) / 8, std::byte{0xFF});
      const SignSums sums = encode_signs(std::span(g).subspan(offset),
                                         std::span(x).subspan(offset, n), sent, kLimit, bits);
      EXPECT_EQ(bits, expected.bits) << "n=" << n;
      for (std::size_t i = 0; i < n; ++i)
        ASSERT_EQ(x[offset + i], expected.x[i]) << "n=" << n << " i=" << i;
      EXPECT_EQ(x.back(), guard) << "wrote past the end, n=" << n;
      EXPECT_NEAR(sums.positive, expected.positive, 1e-5 * (1.0 + expected.positive));
      EXPECT_NEAR(sums.negative, expected.negative, 1e-5 * (1.0 - expected.negative));
      EXPECT_EQ(sums.negatives, expected.negatives);
      EXPECT_TRUE(sums.in_range);
    }
  }
}

TEST_P(Signs, PlainEncodeEqualsFeedbackFromAnEmptyResidual) {
  const auto g = test::gradient(10'007, 3);
  std::vector<float> x(g.size(), 0.0F);
  std::vector<std::byte> with((g.size() + 7) / 8);
  std::vector<std::byte> without(with.size());
  const SignSums a = encode_signs(g, x, SignLevels{}, kLimit, with);
  const SignSums b = encode_signs(g, kLimit, without);
  EXPECT_EQ(with, without);
  EXPECT_EQ(a.positive, b.positive);
  EXPECT_EQ(a.negative, b.negative);
}

TEST_P(Signs, SumsAreBitEqualToTheFirstTargets) {
  const auto g = test::gradient(123'457, 5);
  std::vector<std::byte> bits((g.size() + 7) / 8);
  const SignSums here = encode_signs(g, kLimit, bits);
  static const SignSums first = here;
  EXPECT_EQ(here.positive, first.positive);
  EXPECT_EQ(here.negative, first.negative);
}

TEST_P(Signs, ElementsOutOfRangeAreReportedAndLeaveTheirResidualWhole) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), kLimit, -2 * kLimit}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{17}, std::size_t{40}}) {
      auto g = test::gradient(41, 9);
      g[at] = bad;
      std::vector<float> x(g.size(), 0.5F);
      std::vector<std::byte> bits((g.size() + 7) / 8);
      const SignSums sums =
          encode_signs(g, x, SignLevels{.positive = 0.125F, .negative = 0.0F}, kLimit, bits);
      EXPECT_FALSE(sums.in_range);
      EXPECT_EQ(x[at], 0.375F);
    }
  }
}

TEST_P(Signs, DecodeAddsTheLevelOfEachBit) {
  for (std::size_t n = 0; n <= 67; ++n) {
    const auto g = test::gradient(n, n + 77);
    std::vector<std::byte> bits((n + 7) / 8);
    (void)encode_signs(g, kLimit, bits);
    std::vector<float> dst(n + 1, 1.0F);
    add_levels(bits, SignLevels{.positive = 2.0F, .negative = -3.0F}, std::span(dst).first(n));
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(dst[i], std::signbit(g[i]) ? -2.0F : 3.0F) << i;
    EXPECT_EQ(dst[n], 1.0F);
  }
}

TEST_P(Signs, SubtractLevelsUndoesWhatDecodeWouldAdd) {
  for (std::size_t n = 0; n <= 35; ++n) {
    auto x = test::gradient(n, n);
    const auto before = x;
    subtract_levels(x, SignLevels{.positive = 0.25F, .negative = -0.5F});
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(x[i], before[i] - (std::signbit(before[i]) ? -0.5F : 0.25F));
    }
  }
}

}  // namespace
}  // namespace gradpress::kernels
