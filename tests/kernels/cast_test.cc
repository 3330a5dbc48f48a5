#include "kernels/cast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "support/gradient.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

constexpr float kLimit = 1e17F;

/// A 16-bit float by its definition, in double: significant bits, exponents, and where it
/// saturates.
struct Format {
  int fraction_bits;
  int bias;
  double largest;
  bool (*encode)(const FeedbackPass&, std::span<std::byte>);
  bool (*add)(std::span<const std::byte>, float, std::span<float>);

  double value(std::uint16_t bits) const {
    const int exponent = (bits & 0x7FFF) >> fraction_bits;
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const double magnitude = exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                                           : std::ldexp((1 << fraction_bits) + fraction,
                                                        exponent - bias - fraction_bits);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }
  std::uint16_t bits(float from) const {
    const auto sign = static_cast<std::uint16_t>(std::signbit(from) ? 0x8000 : 0);
    const double magnitude = std::min(std::fabs(static_cast<double>(from)), largest);
    if (magnitude == 0.0) return sign;
    const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
    const auto steps =
        static_cast<int>(std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent)));
    const int hidden = 1 << fraction_bits;
    const int packed =
        steps < hidden ? steps : ((exponent + bias) << fraction_bits) + (steps - hidden);
    return static_cast<std::uint16_t>(sign | packed);
  }
  bool finite(std::uint16_t bits) const {
    const int exponents = 0x7FFF >> fraction_bits;
    return ((bits & 0x7FFF) >> fraction_bits) != exponents;
  }
};

const Format kHalf{10, 15, 65504.0, encode_fp16, add_fp16};
const Format kBrain{7, 127, 3.3895313892515355e38, encode_bf16, add_bf16};

std::vector<std::uint16_t> encode(const Format& format, const std::vector<float>& g,
                                  std::span<float> residual = {}, float limit = kLimit) {
  std::vector<std::byte> bytes(2 * g.size());
  EXPECT_TRUE(format.encode({.g = g, .residual = residual, .limit = limit}, bytes));
  std::vector<std::uint16_t> words(g.size());
  if (!g.empty()) std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

std::vector<std::byte> as_bytes(const std::vector<std::uint16_t>& words) {
  const auto bytes = std::as_bytes(std::span(words));
  return {bytes.begin(), bytes.end()};
}

class Cast : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(Cast);

TEST_P(Cast, EveryFinitePatternDecodesToItsValueAndBack) {
  for (const Format* format : {&kHalf, &kBrain}) {
    std::vector<std::uint16_t> words;
    std::vector<float> values;
    for (unsigned bits = 0; bits <= 0xFFFF; ++bits) {
      const auto word = static_cast<std::uint16_t>(bits);
      if (!format->finite(word)) continue;
      words.push_back(word);
      values.push_back(static_cast<float>(format->value(word)));
    }
    std::vector<float> decoded(words.size(), -0.0F);
    ASSERT_TRUE(format->add(as_bytes(words), 1.0F, decoded));
    for (std::size_t i = 0; i < words.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(decoded[i]), std::bit_cast<std::uint32_t>(values[i]))
          << "bits " << words[i];
    }
    EXPECT_EQ(encode(*format, values, {}, std::numeric_limits<float>::infinity()), words);
  }
}

TEST_P(Cast, RoundsToNearestEvenAtEveryBoundaryBetweenNeighbours) {
  for (const Format* format : {&kHalf, &kBrain}) {
    std::vector<float> values;
    for (unsigned bits = 0; bits < 0x7FFF; ++bits) {
      const auto low = static_cast<std::uint16_t>(bits);
      const auto high = static_cast<std::uint16_t>(bits + 1);
      if (!format->finite(high)) break;
      const auto tie = static_cast<float>((format->value(low) + format->value(high)) / 2);
      for (const float v : {tie, std::nextafter(tie, 0.0F), std::nextafter(tie, 1e38F)}) {
        values.push_back(v);
        values.push_back(-v);
      }
    }
    const auto words = encode(*format, values, {}, std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(words[i], format->bits(values[i])) << values[i];
    }
  }
}

TEST_P(Cast, HalfSaturatesAt65504) {
  for (const float v : {65504.0F, 65519.996F, 65520.0F, 65536.0F, 1e10F, 9.9e16F}) {
    EXPECT_EQ(encode(kHalf, {v, -v}), (std::vector<std::uint16_t>{0x7BFF, 0xFBFF})) << v;
  }
}

TEST_P(Cast, ArbitraryFloatsAgreeWithScalarIncludingSubnormals) {
  for (const Format* format : {&kHalf, &kBrain}) {
    std::vector<float> values;
    std::uint32_t state = 12345;
    for (int i = 0; i < 200'000; ++i) {
      state = state * 1664525U + 1013904223U;
      const auto v = std::bit_cast<float>(state ^ (state >> 7));
      if (std::fabs(v) < kLimit) values.push_back(v);
    }
    const auto words = encode(*format, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(words[i], format->bits(values[i])) << values[i];
    }
  }
}

TEST_P(Cast, FeedbackKeepsWhatRoundingCutOnEveryTailAndAlignment) {
  for (const Format* format : {&kHalf, &kBrain}) {
    for (std::size_t n = 0; n <= 67; ++n) {
      const std::size_t offset = n % 3;
      const auto g = test::gradient(n + offset, n + 1);
      auto residual = test::gradient(n + offset + 1, n + 500);
      const auto before = residual;
      std::vector<std::byte> out(2 * n + 3, std::byte{0xA5});
      ASSERT_TRUE(format->encode({.g = std::span(g).subspan(offset),
                                  .residual = std::span(residual).subspan(offset, n),
                                  .limit = kLimit},
                                 std::span(out).subspan(1, 2 * n)));
      EXPECT_EQ(out[0], std::byte{0xA5});
      EXPECT_EQ(out[2 * n + 1], std::byte{0xA5}) << "wrote past the end, n=" << n;
      EXPECT_EQ(residual.back(), before.back());
      for (std::size_t i = 0; i < n; ++i) {
        const float x = g[offset + i] + before[offset + i];
        std::uint16_t word;
        std::memcpy(&word, out.data() + 1 + 2 * i, sizeof word);
        ASSERT_EQ(word, format->bits(x)) << "n=" << n << " i=" << i;
        ASSERT_EQ(residual[offset + i], x - static_cast<float>(format->value(word)));
      }
    }
  }
}

TEST_P(Cast, DecodeAddsWeightedValuesOnEveryTailAndAlignment) {
  for (const Format* format : {&kHalf, &kBrain}) {
    for (std::size_t n = 0; n <= 67; ++n) {
      const auto g = test::gradient(n, n + 9);
      const auto words = encode(*format, g);
      std::vector<std::byte> shifted(2 * n + 1);
      const auto bytes = as_bytes(words);
      std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
      auto dst = test::gradient(n + 1, n + 77);
      const auto before = dst;
      ASSERT_TRUE(format->add(std::span(shifted).subspan(1), 0.3F, std::span(dst).first(n)));
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(dst[i], before[i] + static_cast<float>(format->value(words[i])) * 0.3F);
      }
      EXPECT_EQ(dst[n], before[n]);
    }
  }
}

TEST_P(Cast, ElementsOutOfRangeAreReportedAndLeaveTheirResidualWhole) {
  for (const Format* format : {&kHalf, &kBrain}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity(), kLimit, -2 * kLimit}) {
      for (const std::size_t at : {std::size_t{0}, std::size_t{17}, std::size_t{40}}) {
        auto g = test::gradient(41, 9);
        g[at] = bad;
        std::vector<float> residual(g.size(), 0.5F);
        std::vector<std::byte> out(2 * g.size());
        EXPECT_FALSE(format->encode({.g = g, .residual = residual, .limit = kLimit}, out));
        EXPECT_EQ(residual[at], 0.0F) << "0.5 is exact in 16 bits";
        EXPECT_FALSE(format->encode({.g = g, .residual = {}, .limit = kLimit}, out));
      }
    }
  }
}

TEST_P(Cast, PatternsThatAreNotFiniteAreReportedAndNotAdded) {
  for (const Format* format : {&kHalf, &kBrain}) {
    for (unsigned bits = 0; bits <= 0xFFFF; ++bits) {
      const auto word = static_cast<std::uint16_t>(bits);
      if (format->finite(word)) continue;
      std::vector<float> dst(19, 2.0F);
      std::vector<std::uint16_t> words(dst.size(), 0);
      words[bits % words.size()] = word;
      ASSERT_FALSE(format->add(as_bytes(words), 1.0F, dst)) << bits;
      for (const float v : dst) ASSERT_EQ(v, 2.0F);
    }
  }
}

}  // namespace
}  // namespace gradpress::kernels
