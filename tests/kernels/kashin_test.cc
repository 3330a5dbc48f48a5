#include "kernels/kashin.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/gradient.h"
#include "support/model.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

constexpr float kLimit = 1e9F;

class Kashin : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(Kashin);

const RandomKey kKey = random_key({.seed = 3, .tensor = 1, .step = 8});
const FrameKeys kKeys{.frame = kKey, .rounding = kKey};

codec::Spec spec_of(unsigned bits) { return {.kind = codec::Kind::kKashin, .bits = bits}; }

std::size_t bytes_of(std::size_t n, unsigned bits) {
  std::size_t bytes = 0;
  for (std::size_t begin = 0; begin < n; begin += kFrameElems) {
    bytes += 4 + frame_length(std::min(kFrameElems, n - begin)) * bits / 8;
  }
  return bytes;
}

/// Every tail around a group, a power of two and a frame.
std::vector<std::size_t> lengths() {
  std::vector<std::size_t> all;
  for (std::size_t n = 0; n <= 70; ++n) all.push_back(n);
  for (const std::size_t n : {127, 128, 129, 511, 513, 1000, 1023, 1024, 1025, 2047, 2049, 3100}) {
    all.push_back(n);
  }
  return all;
}

TEST_P(Kashin, AgreesWithTheScalarModelOnEveryTailLength) {
  for (const unsigned bits : {2U, 4U, 8U}) {
    for (const std::size_t n : lengths()) {
      const std::vector<float> padded = test::gradient(n + 1, n + bits);
      const std::span<const float> g = std::span(padded).subspan(1);  // unaligned
      std::vector<std::byte> out(bytes_of(n, bits));
      ASSERT_TRUE(encode_frames({.g = g, .residual = {}, .limit = kLimit}, kKeys, bits, out));
      const std::vector<double> x(g.begin(), g.end());
      const std::vector<double> none(n, 0.0);
      const test::Words words({.seed = 3, .tensor = 1, .step = 8});
      const std::string wrong = test::judge_kashin(spec_of(bits), {.x = x,
                                                                   .noise = none,
                                                                   .payload = out,
                                                                   .words = words,
                                                                   .encodes = 0,
                                                                   .votes = words,
                                                                   .begin = 0});
      ASSERT_EQ(wrong, "") << bits << " bits, n=" << n;

      std::vector<float> dst(n + 2, 1.0F);
      ASSERT_TRUE(add_frames(out, kKey, bits, 0.5F, std::span(dst).subspan(1, n)));
      const std::vector<double> values = test::read_kashin(spec_of(bits), out, n, words);
      double norm = 0.0;
      for (const double v : x) norm += v * v;
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(dst[i + 1], 1.0 + 0.5 * values[i], 1e-5 * std::sqrt(norm) + 1e-6)
            << bits << " bits, n=" << n << " i=" << i;
      }
      EXPECT_EQ(dst.front(), 1.0F);
      EXPECT_EQ(dst.back(), 1.0F);
    }
  }
}

TEST_P(Kashin, LeavesWhatItDoesNotSendInTheResidual) {
  for (const unsigned bits : {2U, 4U, 8U}) {
    for (const std::size_t n : {1UL, 37UL, 1024UL, 2500UL}) {
      const std::vector<float> g = test::gradient(n, n);
      std::vector<float> residual = test::gradient(n, n + 1);
      const std::vector<float> before = residual;
      std::vector<std::byte> out(bytes_of(n, bits));
      ASSERT_TRUE(encode_frames({.g = g, .residual = residual, .limit = kLimit}, kKeys, bits, out));
      ASSERT_TRUE(add_frames(out, kKey, bits, 1.0F, residual));
      double largest = 1e-6;
      for (std::size_t i = 0; i < n; ++i) {
        largest = std::max(largest, std::fabs(double{g[i]}) + std::fabs(double{before[i]}));
      }
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_NEAR(residual[i], g[i] + before[i], 1e-4 * largest) << bits << " bits, n=" << n;
      }
    }
  }
}

TEST_P(Kashin, SaysWhereAnElementIsOutOfRangeAndCountsItAsZero) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -kLimit}) {
    for (const std::size_t n : {1UL, 17UL, 1030UL}) {
      std::vector<float> g(n, 0.0F);
      g[n - 1] = bad;
      std::vector<std::byte> out(bytes_of(n, 4));
      EXPECT_FALSE(encode_frames({.g = g, .residual = {}, .limit = kLimit}, kKeys, 4, out));
      std::vector<float> dst(n, 0.0F);
      EXPECT_TRUE(add_frames(out, kKey, 4, 1.0F, dst));
      for (const float value : dst) ASSERT_EQ(value, 0.0F);
    }
  }
}

TEST_P(Kashin, RefusesLargestCoefficientsThatCouldOverflow) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -1.0F, 0x1p100F}) {
    std::vector<std::byte> in(bytes_of(1040, 4), std::byte{0xFF});
    const float good = 1.0F;
    std::memcpy(in.data(), &good, sizeof good);
    std::memcpy(in.data() + 4 + 512, &bad, sizeof bad);
    std::vector<float> dst(1040, 0.0F);
    EXPECT_FALSE(add_frames(in, kKey, 4, 1.0F, dst)) << bad;
    EXPECT_EQ(dst[1024], 0.0F);
  }
}

}  // namespace
}  // namespace gradpress::kernels
