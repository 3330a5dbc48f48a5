#include "kernels/votes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/gradient.h"
#include "support/reading.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

constexpr float kLimit = 1e9F;
constexpr std::size_t kTails = 70;

class Votes : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(Votes);

/// The words of a key, by the test's own arithmetic.
const test::Words::Origin kOrigin{.seed = 4, .tensor = 9, .step = 2};
const RandomKey kKey = random_key({.seed = 4, .tensor = 9, .step = 2});

std::vector<float> with_zeros(std::size_t n) {
  std::vector<float> g = test::gradient(n, 3 + n);
  for (std::size_t i = 0; i < n; ++i) {
    if (i % 3 == 1) g[i] = i % 2 == 0 ? 0.0F : -0.0F;
  }
  return g;
}

TEST_P(Votes, AreSignsAndTheWordsLowestBitOfZerosOnEveryTailLength) {
  const test::Words words(kOrigin);
  for (const bool flip : {false, true}) {
    for (std::size_t n = 0; n <= kTails; ++n) {
      const std::vector<float> padded = with_zeros(n + 1);
      const std::span<const float> g = std::span(padded).subspan(1);  // unaligned
      std::vector<std::byte> bits((n + 7) / 8, std::byte{0xFF});
      const auto begin = static_cast<std::uint32_t>(5 * n);
      ASSERT_TRUE(encode_votes(g, kLimit, {.key = kKey, .begin = begin, .flip = flip}, bits));
      for (std::size_t i = 0; i < 8 * bits.size(); ++i) {
        bool wanted = false;
        if (i < n) wanted = g[i] == 0.0F ? ((words[begin + i] & 1U) != 0) != flip : g[i] < 0.0F;
        ASSERT_EQ(test::read_bit(bits, 0, i), wanted) << "n=" << n << " i=" << i;
      }
    }
  }
}

TEST_P(Votes, SayWhereAnElementIsOutOfRangeAndCountItAsZero) {
  const test::Words words(kOrigin);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -kLimit}) {
    for (std::size_t n = 1; n <= kTails; n += 3) {
      std::vector<float> g(n, 1.0F);
      g[n / 2] = bad;
      std::vector<std::byte> bits((n + 7) / 8);
      EXPECT_FALSE(encode_votes(g, kLimit, {.key = kKey}, bits)) << bad << " n=" << n;
      EXPECT_EQ(test::read_bit(bits, 0, n / 2), (words[n / 2] & 1U) != 0);
    }
  }
}

TEST_P(Votes, CastingVotesAddHalfByTheWordsHighestBit) {
  const test::Words words(kOrigin);
  for (std::size_t n = 0; n <= kTails; ++n) {
    std::vector<float> dst(n + 2, 3.0F);
    add_casting_votes(0.5F, {.key = kKey, .begin = 11}, std::span(dst).subspan(1, n));
    EXPECT_EQ(dst.front(), 3.0F);
    EXPECT_EQ(dst.back(), 3.0F);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(dst[i + 1], (words[11 + i] >> 31) != 0 ? 2.5F : 3.5F) << "n=" << n << " i=" << i;
    }
  }
}

}  // namespace
}  // namespace gradpress::kernels
