#include "kernels/quantise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/gradient.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

constexpr float kLimit = 1e17F;
const RandomKey kKey = random_key({.seed = 3, .tensor = 1, .step = 4, .site = 1, .shard = 5});
const std::vector<float> kBad = {std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::infinity(),
                                 -std::numeric_limits<float>::infinity(), kLimit, -2 * kLimit};

float uniform(std::size_t index) {
  return static_cast<float>(random_word(kKey, static_cast<std::uint32_t>(index)) >> 8) * 0x1.0p-24F;
}

/// A block payload with guard bytes behind scales and codes.
struct Payload {
  Payload(std::size_t elements, std::size_t per_block, unsigned code_bits)
      : n(elements),
        block(per_block),
        bits(code_bits),
        scale_room(4 * ((n + block - 1) / block) + 1, std::byte{0xA5}),
        code_room((n * bits + 7) / 8 + 1, std::byte{0xA5}) {}
  BlockPayload out() {
    return {.scales = std::span(scale_room).first(scale_room.size() - 1),
            .codes = std::span(code_room).first(code_room.size() - 1),
            .block = block};
  }
  BlockCodes in() const {
    return {.scales = std::span(scale_room).first(scale_room.size() - 1),
            .codes = std::span(code_room).first(code_room.size() - 1),
            .block = block,
            .bits = bits,
            .scale_divisor = divisor};
  }
  bool guards_stand() const {
    return scale_room.back() == std::byte{0xA5} && code_room.back() == std::byte{0xA5};
  }
  float scale(std::size_t index) const {
    float value;
    std::memcpy(&value, scale_room.data() + 4 * (index / block), sizeof value);
    return value;
  }
  int code(std::size_t index) const {
    const std::size_t bit = index * bits;
    const int raw = (std::to_integer<int>(code_room[bit / 8]) >> (bit % 8)) & ((1 << bits) - 1);
    return raw >= 1 << (bits - 1) ? raw - (1 << bits) : raw;
  }

  std::size_t n, block;
  unsigned bits;
  float divisor = 1.0F;
  std::vector<std::byte> scale_room, code_room;
};

struct Sample {
  explicit Sample(std::size_t n, float factor = 1.0F)
      : offset(n % 3),
        g_room(test::gradient(n + offset, n + 1)),
        residual_room(test::gradient(n + offset + 1, n + 500)) {
    for (float& v : g_room) v *= factor;
    for (float& v : residual_room) v *= factor;
    before = residual_room;
    for (std::size_t i = 0; i < n; ++i) x.push_back(g_room[offset + i] + before[offset + i]);
  }
  FeedbackPass pass() {
    return {.g = std::span(g_room).subspan(offset),
            .residual = std::span(residual_room).subspan(offset, x.size()),
            .limit = kLimit};
  }
  float residual(std::size_t i) const { return residual_room[offset + i]; }
  bool guard_stands() const { return residual_room.back() == before.back(); }

  std::size_t offset;
  std::vector<float> g_room, residual_room, before, x;
};

class Quantise : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(Quantise);

TEST_P(Quantise, Int8AgreesWithScalarOnEveryTailAndBlock) {
  for (const std::size_t block : {16, 17, 33, 64}) {
    for (std::size_t n = 0; n <= 131; ++n) {
      Sample sample(n);
      Payload payload(n, block, 8);
      ASSERT_TRUE(encode_int8(sample.pass(), payload.out()));
      for (std::size_t i = 0; i < n; ++i) {
        const std::size_t begin = i / block * block;
        float peak = 0.0F;
        for (std::size_t j = begin; j < std::min(begin + block, n); ++j) {
          peak = std::max(peak, std::fabs(sample.x[j]));
        }
        ASSERT_EQ(payload.scale(i), peak / 127.0F);
        const auto code = static_cast<int>(std::nearbyint(sample.x[i] * (127.0F / peak)));
        ASSERT_EQ(payload.code(i), code) << "n=" << n << " i=" << i;
        ASSERT_EQ(sample.residual(i), sample.x[i] - static_cast<float>(code) * payload.scale(i));
      }
      ASSERT_TRUE(payload.guards_stand() && sample.guard_stands()) << n;
    }
  }
}

TEST_P(Quantise, Int8RoundsTiesToEven) {
  std::vector<float> g;
  for (int i = -127; i < 127; ++i) g.push_back(static_cast<float>(i) + 0.5F);
  g.push_back(127.0F);
  Payload payload(g.size(), 1024, 8);
  ASSERT_TRUE(encode_int8({.g = g, .residual = {}, .limit = kLimit}, payload.out()));
  for (std::size_t i = 0; i < g.size(); ++i) EXPECT_EQ(payload.code(i), std::nearbyint(g[i]));
}

TEST_P(Quantise, BlocksBelowTheLeastScaleAreSentAsZerosAndKept) {
  for (const float tiny : {0.0F, 1e-40F, -0x1.fffffep-101F}) {
    for (const unsigned bits : {0U, 2U, 4U, 8U}) {  // 0: int8
      std::vector<float> g(19, 0.0F);
      g[3] = tiny;
      std::vector<float> residual(g.size(), 0.0F);
      Payload payload(g.size(), 1024, bits == 0 ? 8 : bits);
      const FeedbackPass pass{.g = g, .residual = residual, .limit = kLimit};
      ASSERT_TRUE(bits == 0 ? encode_int8(pass, payload.out())
                            : encode_qsgd(pass, kKey, bits, payload.out()));
      EXPECT_EQ(payload.scale(0), 0.0F);
      for (std::size_t i = 0; i < g.size(); ++i) {
        EXPECT_EQ(payload.code(i), 0);
        EXPECT_EQ(residual[i], g[i]);
      }
    }
  }
}

TEST_P(Quantise, QsgdAgreesWithScalarOnEveryTailAndBlock) {
  for (const unsigned bits : {2U, 4U, 8U}) {
    for (const std::size_t block : {16, 17, 33, 64}) {
      for (std::size_t n = 0; n <= 131; ++n) {
        Sample sample(n);
        Payload payload(n, block, bits);
        ASSERT_TRUE(encode_qsgd(sample.pass(), kKey, bits, payload.out()));
        const auto top = static_cast<float>((1 << (bits - 1)) - 1);
        for (std::size_t i = 0; i < n; ++i) {
          const std::size_t begin = i / block * block;
          double squares = 0.0;
          for (std::size_t j = begin; j < std::min(begin + block, n); ++j) {
            squares += double(sample.x[j]) * double(sample.x[j]);
          }
          const float norm = payload.scale(i);
          ASSERT_NEAR(norm, std::sqrt(squares), 1e-6 * std::sqrt(squares));
          const float level = std::fabs(sample.x[i]) * (top / norm) + uniform(i);
          const float magnitude = std::min(top, std::floor(level));
          const float code = std::signbit(sample.x[i]) ? -magnitude : magnitude;
          ASSERT_EQ(payload.code(i), static_cast<int>(code)) << "n=" << n << " i=" << i;
          ASSERT_EQ(sample.residual(i), sample.x[i] - code * (norm / top));
        }
        ASSERT_TRUE(payload.guards_stand() && sample.guard_stands()) << n;
      }
    }
  }
}

TEST_P(Quantise, NormsOfTinyAndHugeBlocksAreAsPreciseAsOthers) {
  for (const float factor : {0x1.0p-90F, 0x1.0p-70F, 0x1.0p-28F, 0x1.0p40F}) {
    const auto base = test::gradient(5000, 11);
    std::vector<float> g(base);
    for (float& v : g) v *= factor;
    double squares = 0.0;
    for (const float v : g) squares += double(v) * double(v);
    Payload payload(g.size(), 8192, 8);
    ASSERT_TRUE(encode_qsgd({.g = g, .residual = {}, .limit = kLimit}, kKey, 8, payload.out()));
    EXPECT_NEAR(payload.scale(0) / std::sqrt(squares), 1.0, 1e-6) << factor;
  }
}

TEST_P(Quantise, NaturalAgreesWithScalarOnEveryTail) {
  for (const float factor : {1.0F, 0x1.0p-112F, 0x1.0p22F}) {  // in range, below it, above it
    for (std::size_t n = 0; n <= 67; ++n) {
      Sample sample(n, factor);
      std::vector<std::byte> out(n + 1, std::byte{0xA5});
      ASSERT_TRUE(encode_natural(sample.pass(), kKey, std::span(out).first(n)));
      for (std::size_t i = 0; i < n; ++i) {
        std::uint32_t magnitude;
        const float absolute = std::fabs(sample.x[i]);
        std::memcpy(&magnitude, &absolute, sizeof magnitude);
        const std::uint32_t word = random_word(kKey, static_cast<std::uint32_t>(i));
        const auto exponent = static_cast<int>((magnitude + word % (1U << 23)) >> 23);
        const int code = std::clamp(exponent - 17, 0, 127);
        const bool minus = std::signbit(sample.x[i]);
        ASSERT_EQ(std::to_integer<int>(out[i]), code + (minus ? 128 : 0)) << "n=" << n;
        const float value = code == 0 ? 0.0F : std::ldexp(1.0F, code - 110);
        ASSERT_EQ(sample.residual(i), sample.x[i] - (minus ? -value : value));
      }
      ASSERT_EQ(out[n], std::byte{0xA5});
      ASSERT_TRUE(sample.guard_stands());
    }
  }
}

TEST_P(Quantise, DecodeAddsWeightedValuesOnEveryTailAndBlock) {
  for (const unsigned bits : {2U, 4U, 8U}) {
    for (const std::size_t block : {16, 17, 33, 64}) {
      for (std::size_t n = 0; n <= 131; ++n) {
        const auto g = test::gradient(n, n + 3);
        Payload payload(n, block, bits);
        payload.divisor = static_cast<float>((1 << (bits - 1)) - 1);
        ASSERT_TRUE(
            encode_qsgd({.g = g, .residual = {}, .limit = kLimit}, kKey, bits, payload.out()));
        // The code −2^(bits−1) is never made, and decodes like any other.
        if (n > 0) payload.code_room[n * bits / 16] = std::byte{0x80};
        const auto before = test::gradient(n + 2, n + 70);
        auto dst = before;
        ASSERT_TRUE(add_block_codes(payload.in(), 0.3F, std::span(dst).subspan(1, n)));
        for (std::size_t i = 0; i < n; ++i) {
          const float value =
              static_cast<float>(payload.code(i)) * (payload.scale(i) / payload.divisor);
          ASSERT_EQ(dst[i + 1], before[i + 1] + value * 0.3F) << "n=" << n << " i=" << i;
        }
        ASSERT_EQ(dst.front(), before.front());
        ASSERT_EQ(dst.back(), before.back());
      }
    }
  }
}

TEST_P(Quantise, DecodeRefusesScalesWithoutFiniteValues) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), 3e38F, -3e38F}) {
    Payload payload(40, 16, 8);
    std::fill(payload.scale_room.begin(), payload.scale_room.end(), std::byte{0});
    std::memcpy(payload.scale_room.data() + 4, &bad, sizeof bad);
    std::vector<float> dst(40, 1.0F);
    EXPECT_FALSE(add_block_codes(payload.in(), 1.0F, dst));
    for (const float v : dst) EXPECT_EQ(v, 1.0F);
  }
}

TEST_P(Quantise, NaturalDecodesEveryByteOnEveryTail) {
  for (std::size_t n = 0; n <= 300; n += n < 67 ? 1 : 93) {
    std::vector<std::byte> in(n);
    for (std::size_t i = 0; i < n; ++i) in[i] = static_cast<std::byte>(i % 256);
    std::vector<float> dst(n + 1, 1.0F);
    add_natural(in, 0.5F, std::span(dst).first(n));
    for (std::size_t i = 0; i < n; ++i) {
      const int code = static_cast<int>(i % 128);
      const float value = code == 0 ? 0.0F : std::ldexp(1.0F, code - 110);
      ASSERT_EQ(dst[i], 1.0F + (i % 256 >= 128 ? -value : value) * 0.5F) << i;
    }
    ASSERT_EQ(dst[n], 1.0F);
  }
}

TEST_P(Quantise, PayloadsAreBitEqualToTheFirstTargets) {
  const auto g = test::gradient(100'003, 21);
  std::vector<std::byte> all;
  const FeedbackPass pass{.g = g, .residual = {}, .limit = kLimit};
  for (const unsigned bits : {0U, 2U, 4U, 8U}) {  // 0: int8
    Payload payload(g.size(), 8192, bits == 0 ? 8 : bits);
    ASSERT_TRUE(bits == 0 ? encode_int8(pass, payload.out())
                          : encode_qsgd(pass, kKey, bits, payload.out()));
    all.insert(all.end(), payload.scale_room.begin(), payload.scale_room.end());
    all.insert(all.end(), payload.code_room.begin(), payload.code_room.end());
  }
  static const std::vector<std::byte> first = all;
  EXPECT_EQ(all, first);
}

TEST_P(Quantise, ElementsOutOfRangeAreReportedAndLeaveTheRestWhole) {
  for (const float bad : kBad) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{17}, std::size_t{40}}) {
      auto g = test::gradient(41, 9);
      g[at] = bad;
      auto zeroed = g;
      zeroed[at] = 0.0F;
      for (const unsigned bits : {0U, 1U, 2U, 4U, 8U}) {  // 0: int8, 1: natural
        const auto encode = [&](const std::vector<float>& from, std::vector<float>& residual) {
          Payload payload(from.size(), 16, bits < 2 ? 8 : bits);
          const FeedbackPass pass{.g = from, .residual = residual, .limit = kLimit};
          return bits == 0   ? encode_int8(pass, payload.out())
                 : bits == 1 ? encode_natural(pass, kKey, payload.out().codes)
                             : encode_qsgd(pass, kKey, bits, payload.out());
        };
        std::vector<float> expected(g.size(), 0.3F);
        std::vector<float> residual(expected);
        std::vector<float> none;
        EXPECT_TRUE(encode(zeroed, expected));
        EXPECT_FALSE(encode(g, residual));
        EXPECT_FALSE(encode(g, none));
        EXPECT_EQ(residual, expected);
      }
    }
  }
}

}  // namespace
}  // namespace gradpress::kernels
