#include "kernels/ternary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/gradient.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

constexpr float kLimit = 1e17F;
const RandomKey kKey = random_key({.seed = 8, .tensor = 2, .step = 9, .site = 0, .shard = 1});

double sigma_of(const std::vector<float>& x) {
  double mean = 0.0;
  for (const float v : x) mean += double(v) / double(x.size());
  double squares = 0.0;
  for (const float v : x) squares += (double(v) - mean) * (double(v) - mean);
  return std::sqrt(squares / double(x.size()));
}

/// Where element i's kept and sign bits are, by docs/wire_format.md.
struct Place {
  std::size_t kept_byte, sign_byte;
  unsigned kept_bit, sign_bit;
};
Place place(std::size_t i, std::size_t n) {
  const std::size_t group = i / 8 * 8;
  const auto bit = static_cast<unsigned>(i % 8);
  if (n - group <= 4) return {group / 4, group / 4, bit, bit + 4};
  return {group / 4, group / 4 + 1, bit, bit};
}
bool bit_at(const std::vector<std::byte>& bytes, std::size_t byte, unsigned bit) {
  return ((std::to_integer<unsigned>(bytes[byte]) >> bit) & 1U) != 0;
}

class Ternary : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(Ternary);

TEST_P(Ternary, SpreadIsThatOfXAndChangesNothing) {
  for (std::size_t n = 1; n <= 67; ++n) {
    const auto g = test::gradient(n, n + 1);
    auto residual = test::gradient(n + 1, n + 500);
    const auto before = residual;
    std::vector<float> x(n);
    float peak = 0.0F;
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = g[i] + before[i];
      peak = std::max(peak, std::fabs(x[i]));
    }
    const Spread spread =
        measure_spread({.g = g, .residual = std::span(residual).first(n), .limit = kLimit});
    EXPECT_NEAR(spread.sigma, sigma_of(x), 1e-5 * sigma_of(x)) << n;
    EXPECT_EQ(spread.peak, peak);
    EXPECT_TRUE(spread.in_range);
    EXPECT_EQ(residual, before);
  }
  EXPECT_EQ(measure_spread({.g = {}, .residual = {}, .limit = kLimit}).sigma, 0.0);
}

TEST_P(Ternary, SpreadIsPreciseFarFromZeroAndExactlyZeroForEqualElements) {
  for (const float centre : {0.0F, 1.0F, 0.1F, -1e-9F, 12345.678F}) {
    const std::vector<float> equal(100'003, centre);
    EXPECT_EQ(measure_spread({.g = equal, .residual = {}, .limit = kLimit}).sigma, 0.0) << centre;
  }
  auto g = test::gradient(100'003, 4);
  for (float& v : g) v += 100.0F;
  const double far = measure_spread({.g = g, .residual = {}, .limit = kLimit}).sigma;
  EXPECT_NEAR(far, sigma_of(g), 1e-4 * sigma_of(g));
  static const double first = far;
  EXPECT_EQ(far, first) << "differs between targets";
  std::vector<float> spike(100'003, 0.0F);
  spike[0] = 3.0F;
  const double spiked = measure_spread({.g = spike, .residual = {}, .limit = kLimit}).sigma;
  EXPECT_NEAR(spiked, sigma_of(spike), 0.01 * sigma_of(spike));
}

TEST_P(Ternary, EncodeAndDecodeAgreeWithScalarOnEveryTail) {
  for (std::size_t n = 0; n <= 67; ++n) {
    for (const float scale : {0.0F, 0.004F, 1.0F}) {
      const std::size_t offset = n % 3;
      const auto x = test::gradient(n + offset, n + 1);
      auto residual = x;
      residual.push_back(7.0F);
      std::vector<std::byte> out((n + 3) / 4 + 1, std::byte{0xA5});
      const std::vector<float> g(n, 0.0F);
      encode_ternary({.g = g, .residual = std::span(residual).subspan(offset, n), .limit = kLimit},
                     kKey, scale, std::span(out).first(out.size() - 1));
      std::vector<std::byte> plain(out.size(), std::byte{0xA5});
      encode_ternary({.g = std::span(x).subspan(offset), .residual = {}, .limit = kLimit}, kKey,
                     scale, std::span(plain).first(plain.size() - 1));
      EXPECT_EQ(out, plain);
      EXPECT_EQ(out.back(), std::byte{0xA5}) << n;
      EXPECT_EQ(residual.back(), 7.0F);
      std::vector<float> dst(n + 1, 1.0F);
      add_ternary(std::span(out).first(out.size() - 1), scale, 0.5F, std::span(dst).first(n));
      std::vector<std::byte> expected(out.size(), std::byte{0});
      expected.back() = std::byte{0xA5};
      for (std::size_t i = 0; i < n; ++i) {
        const float v = x[offset + i];
        const float u =
            static_cast<float>(random_word(kKey, static_cast<std::uint32_t>(i)) >> 8) * 0x1.0p-24F;
        const bool kept = u * scale < std::min(std::fabs(v), scale);
        const bool minus = kept && std::signbit(v);
        const Place at = place(i, n);
        if (kept) expected[at.kept_byte] |= std::byte{1} << at.kept_bit;
        if (minus) expected[at.sign_byte] |= std::byte{1} << at.sign_bit;
        const float value = kept ? (minus ? -scale : scale) : 0.0F;
        ASSERT_EQ(residual[offset + i], v - value) << "n=" << n << " i=" << i;
        ASSERT_EQ(dst[i], 1.0F + value * 0.5F) << "n=" << n << " i=" << i;
      }
      EXPECT_EQ(out, expected) << n;
      EXPECT_EQ(dst[n], 1.0F);
    }
  }
}

TEST_P(Ternary, DecodeIgnoresSignsOfElementsNotKeptAndBitsPastTheEnd) {
  for (std::size_t n = 1; n <= 67; ++n) {
    std::vector<std::byte> in((n + 3) / 4);
    auto state = static_cast<std::uint32_t>(n);
    for (std::byte& b : in) {
      state = state * 1664525U + 1013904223U;
      b = static_cast<std::byte>(state >> 24);
    }
    std::vector<float> dst(n + 1, 0.0F);
    add_ternary(in, 2.0F, 1.0F, std::span(dst).first(n));
    for (std::size_t i = 0; i < n; ++i) {
      const Place at = place(i, n);
      const float value = bit_at(in, at.sign_byte, at.sign_bit) ? -2.0F : 2.0F;
      ASSERT_EQ(dst[i], bit_at(in, at.kept_byte, at.kept_bit) ? value : 0.0F) << "n=" << n;
    }
    EXPECT_EQ(dst[n], 0.0F);
  }
}

TEST_P(Ternary, ElementsOutOfRangeAreReportedAndCountAsZero) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), kLimit, -2 * kLimit}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{17}, std::size_t{40}}) {
      auto g = test::gradient(41, 9);
      g[at] = bad;
      std::vector<float> residual(g.size(), 0.5F);
      const Spread spread = measure_spread({.g = g, .residual = residual, .limit = kLimit});
      EXPECT_FALSE(spread.in_range);
      EXPECT_TRUE(std::isfinite(spread.sigma) && std::isfinite(spread.peak));
      EXPECT_EQ(residual[at], 0.5F);
      EXPECT_FALSE(measure_spread({.g = g, .residual = {}, .limit = kLimit}).in_range);
    }
  }
}

}  // namespace
}  // namespace gradpress::kernels
