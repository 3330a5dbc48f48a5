// The dense quantisers end to end, as a user gets them from make_codec.
#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/gradient.h"

namespace gradpress {
namespace {

std::unique_ptr<const Codec> codec_of(const std::string& text) {
  auto made = make_codec(text);
  EXPECT_TRUE(made.has_value()) << made.error().to_string();
  return std::move(*made);
}

std::unique_ptr<State> state_of(const Codec& codec, std::size_t elements, bool feedback,
                                std::uint64_t seed = 1) {
  auto made = codec.make_state(
      {.shape = Shape::flat(elements), .seed = seed, .tensor = 3, .feedback = feedback});
  EXPECT_TRUE(made.has_value()) << made.error().to_string();
  return std::move(*made);
}

struct Encoded {
  std::vector<std::byte> bytes;
  std::vector<std::size_t> shard_bytes;
};

Encoded encode(const Codec& codec, State& state, const std::vector<float>& g,
               std::uint32_t shards = 1, std::uint64_t step = 0) {
  Encoded result{std::vector<std::byte>(codec.encode_bound(state.shape(), shards)),
                 std::vector<std::size_t>(shards)};
  const auto used = codec.encode(state, {.grad = g, .shards = shards, .step = step, .reduced = {}},
                                 result.bytes, result.shard_bytes);
  EXPECT_TRUE(used.has_value()) << used.error().to_string();
  EXPECT_EQ(*used, result.bytes.size()) << "these codecs are fixed_size";
  return result;
}

std::vector<float> decode(const Codec& codec, State& state, const Encoded& from,
                          std::size_t elements, std::uint64_t step = 0) {
  std::vector<float> dst(elements, 0.0F);
  const auto shards = static_cast<std::uint32_t>(from.shard_bytes.size());
  std::size_t at = 0;
  for (std::uint32_t index = 0; index < shards; ++index) {
    const ShardRange shard = shard_range(elements, shards, index);
    EXPECT_EQ(from.shard_bytes[index], codec.payload_bound(Shape::flat(shard.count)));
    const Status status =
        codec.decode(state,
                     {.payload = std::span(from.bytes).subspan(at, from.shard_bytes[index]),
                      .shard = index,
                      .step = step},
                     std::span(dst).subspan(shard.begin, shard.count));
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    at += from.shard_bytes[index];
  }
  return dst;
}

std::vector<float> residual_of(const State& state) {
  std::vector<float> residual(state.shape().elements());
  state.materialise(residual);
  return residual;
}

double squares(const std::vector<float>& v) {
  double sum = 0.0;
  for (const float x : v) sum += double(x) * double(x);
  return sum;
}
double squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i]));
  }
  return sum;
}

class Quantisers : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<const Codec> codec_ = codec_of(GetParam());
};
class UnbiasedQuantisers : public Quantisers {};

std::string test_name(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Codecs, Quantisers,
                         ::testing::Values("fp16", "bf16", "int8", "int8:block=100", "qsgd:2",
                                           "qsgd:4", "qsgd:8", "qsgd:4:block=33", "terngrad",
                                           "terngrad:clip=0", "natural"),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Codecs, UnbiasedQuantisers,
                         ::testing::Values("qsgd:2", "qsgd:4", "qsgd:8", "qsgd:4:block=33",
                                           "terngrad:clip=0", "natural"),
                         test_name);

TEST_P(Quantisers, IsCalledWhatItWasAskedFor) { EXPECT_EQ(codec_->name(), GetParam()); }

TEST_P(Quantisers, NothingIsLostOverSixStepsOfAnyShardsAndOddSizes) {
  for (const std::size_t n : {1UL, 2UL, 5UL, 8UL, 31UL, 257UL, 5003UL}) {
    const auto state = state_of(*codec_, n, true);
    std::vector<double> sent(n, 0.0);
    std::vector<double> given(n, 0.0);
    double scale = 0.0;
    std::uint64_t step = 0;
    for (const std::uint32_t shards : {1U, 3U, 7U, 7U, 1U, 3U}) {
      const auto g = test::gradient(n, 100 * n + step);
      const auto decoded =
          decode(*codec_, *state, encode(*codec_, *state, g, shards, step), n, step);
      for (std::size_t i = 0; i < n; ++i) {
        sent[i] += double(decoded[i]);
        given[i] += double(g[i]);
        scale = std::max({scale, std::fabs(given[i]), std::fabs(sent[i])});
      }
      ++step;
    }
    const auto left = residual_of(*state);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_NEAR(sent[i] + double(left[i]), given[i], 1e-5 * scale) << "n=" << n << " i=" << i;
    }
  }
}

TEST_P(Quantisers, ErrorIsWithinWhatTheCodecPromises) {
  const std::size_t n = 4099;
  const Shape shape = Shape::flat(n);
  const auto g = test::gradient(n, 12);
  constexpr int kDraws = 40;
  double error = 0.0;
  for (int draw = 0; draw < kDraws; ++draw) {
    const auto state = state_of(*codec_, n, false, static_cast<std::uint64_t>(draw));
    error += squared_distance(decode(*codec_, *state, encode(*codec_, *state, g), n), g) / kDraws;
  }
  if (const auto alpha = codec_->contraction(shape)) {
    EXPECT_GE(*alpha, 0.0);
    EXPECT_LE(*alpha, 1.0);
    EXPECT_LE(error, (1.0 - *alpha) * squares(g));
  }
  EXPECT_EQ(codec_->variance(shape).has_value(), !codec_->traits().biased);
  if (const auto omega = codec_->variance(shape)) {
    EXPECT_LE(error, *omega * squares(g));
  }
}

TEST_P(UnbiasedQuantisers, MeetTheElementOnAverage) {
  EXPECT_FALSE(codec_->traits().biased);
  const std::size_t n = 64;
  constexpr int kDraws = 4000;
  // Of like magnitudes: an element far below its scale is sent too rarely for a mean to settle.
  std::vector<float> g(n);
  for (std::size_t i = 0; i < n; ++i) {
    g[i] = (i % 3 == 0 ? -1.0F : 1.0F) * (0.3F + static_cast<float>(i) / 64.0F);
  }
  const auto state = state_of(*codec_, n, false);
  std::vector<double> mean(n, 0.0);
  std::vector<double> square(n, 0.0);
  for (int draw = 0; draw < kDraws; ++draw) {
    const auto step = static_cast<std::uint64_t>(draw);
    const auto decoded = decode(*codec_, *state, encode(*codec_, *state, g, 1, step), n, step);
    for (std::size_t i = 0; i < n; ++i) {
      mean[i] += double(decoded[i]) / kDraws;
      square[i] += double(decoded[i]) * double(decoded[i]) / kDraws;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double spread = std::sqrt(std::max(0.0, square[i] - mean[i] * mean[i]) / kDraws);
    EXPECT_NEAR(mean[i], double(g[i]), 5.0 * spread + 1e-6 * std::fabs(double(g[i]))) << i;
  }
}

TEST_P(Quantisers, PlainEncodeEqualsFeedbackFromAnEmptyResidual) {
  const auto g = test::gradient(3001, 8);
  const auto plain = state_of(*codec_, g.size(), false);
  const auto kept = state_of(*codec_, g.size(), true);
  EXPECT_EQ(encode(*codec_, *plain, g, 3).bytes, encode(*codec_, *kept, g, 3).bytes);
  EXPECT_EQ(plain->norm(), 0.0);
}

TEST_P(Quantisers, ShardsDrawTheNumbersOfStatesThatStartAtThem) {
  const auto g = test::gradient(1000, 8);
  const auto whole = state_of(*codec_, g.size(), false);
  const Encoded sharded = encode(*codec_, *whole, g, 4);
  const ShardRange last = shard_range(g.size(), 4, 3);
  const std::vector<float> part(g.begin() + static_cast<long>(last.begin), g.end());
  auto own = codec_->make_state({.shape = Shape::flat(part.size()),
                                 .seed = 1,
                                 .tensor = 3,
                                 .first_shard = 3,
                                 .feedback = false});
  const Encoded alone = encode(*codec_, **own, part);
  EXPECT_TRUE(std::equal(alone.bytes.rbegin(), alone.bytes.rend(), sharded.bytes.rbegin()));
}

TEST_P(Quantisers, ZerosStayZerosAndEmptyTensorsAreFine) {
  for (const std::size_t n : {0UL, 1UL, 77UL}) {
    for (const std::uint32_t shards : {1U, 3U}) {
      for (const bool feedback : {false, true}) {
        const auto state = state_of(*codec_, n, feedback);
        const std::vector<float> zeros(n, 0.0F);
        EXPECT_EQ(decode(*codec_, *state, encode(*codec_, *state, zeros, shards), n), zeros);
        EXPECT_EQ(state->norm(), 0.0);
      }
    }
  }
}

TEST_P(Quantisers, ConstantTensorsAndSingleElementsComeNearTheirValue) {
  for (const std::size_t n : {1UL, 4099UL}) {
    for (const float value : {0.37F, -2.5e-3F}) {
      const std::vector<float> g(n, value);
      const auto state = state_of(*codec_, n, false);
      const auto decoded = decode(*codec_, *state, encode(*codec_, *state, g), n);
      double mean = 0.0;
      for (const float v : decoded) mean += double(v) / double(n);
      // One draw of natural is off by up to a factor of 3/2; means over many are close.
      const double slack = n == 1 ? 0.5 : 0.35;
      EXPECT_NEAR(mean, double(value), slack * std::fabs(double(value))) << "n=" << n;
    }
  }
}

TEST_P(Quantisers, GradientsOutOfRangeAreRefusedAndTheResidualStays) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), -kGradientLimit}) {
    for (const std::uint32_t shards : {1U, 3U}) {
      const std::size_t n = 203;
      const auto state = state_of(*codec_, n, true);
      (void)encode(*codec_, *state, test::gradient(n, 3), shards);
      const auto before = residual_of(*state);
      auto g = test::gradient(n, 4);
      double largest = 0.0;
      for (const float v : g) largest = std::max(largest, std::fabs(double(v)));
      g[150] = bad;
      std::vector<std::byte> out(codec_->encode_bound(state->shape(), shards));
      std::vector<std::size_t> shard_bytes(shards);
      const auto used =
          codec_->encode(*state, {.grad = g, .shards = shards, .reduced = {}}, out, shard_bytes);
      ASSERT_FALSE(used.has_value());
      EXPECT_EQ(used.error().code(), Code::kNonFinite) << used.error().to_string();
      const auto after = residual_of(*state);
      for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(after[i], before[i], 1e-6 * largest) << i;
      // The next good step works as if nothing had been.
      EXPECT_EQ(encode(*codec_, *state, test::gradient(n, 5), shards).shard_bytes.size(), shards);
      const auto plain = state_of(*codec_, n, false);
      const auto refused =
          codec_->encode(*plain, {.grad = g, .shards = shards, .reduced = {}}, out, shard_bytes);
      ASSERT_FALSE(refused.has_value());
      EXPECT_EQ(refused.error().code(), Code::kNonFinite);
    }
  }
}

TEST_P(Quantisers, PayloadsOfAWrongLengthAreRefused) {
  const auto g = test::gradient(100, 3);
  const auto state = state_of(*codec_, g.size(), false);
  Encoded encoded = encode(*codec_, *state, g);
  std::vector<float> dst(g.size(), 1.0F);
  for (std::size_t length = 0; length < encoded.bytes.size(); ++length) {
    const Status status =
        codec_->decode(*state, {.payload = std::span(encoded.bytes).first(length)}, dst);
    ASSERT_EQ(status.code(), Code::kCorruptPayload) << length;
  }
  encoded.bytes.push_back(std::byte{0});
  EXPECT_EQ(codec_->decode(*state, {.payload = encoded.bytes}, dst).code(), Code::kCorruptPayload);
  for (const float v : dst) EXPECT_EQ(v, 1.0F);
}

TEST_P(Quantisers, PayloadsOfOnesNeverPoisonTheDestination) {
  const auto state = state_of(*codec_, 100, false);
  const std::vector<std::byte> ones(codec_->payload_bound(state->shape()), std::byte{0xFF});
  std::vector<float> dst(100, 1.0F);
  const Status status = codec_->decode(*state, {.payload = ones}, dst);
  // Every byte of natural is a valid code; elsewhere these are NaN halves or scales.
  EXPECT_EQ(status.code(),
            std::string(GetParam()) == "natural" ? Code::kOk : Code::kCorruptPayload);
  for (const float v : dst) EXPECT_TRUE(std::isfinite(v));
}

TEST(QuantiserTraits, SayWhichTypeAnAllReduceSees) {
  EXPECT_EQ(codec_of("fp16")->traits().payload_type, DataType::kFloat16);
  EXPECT_EQ(codec_of("bf16")->traits().payload_type, DataType::kBfloat16);
  EXPECT_TRUE(codec_of("fp16")->traits().reducible && codec_of("bf16")->traits().reducible);
  for (const char* text : {"int8", "qsgd:8", "terngrad", "natural"}) {
    EXPECT_FALSE(codec_of(text)->traits().reducible) << text;
  }
  EXPECT_TRUE(codec_of("int8")->traits().needs_feedback);
  EXPECT_TRUE(codec_of("terngrad")->traits().biased);
  EXPECT_FALSE(codec_of("terngrad:clip=0")->traits().biased);
}

TEST(Int8Contraction, IsNearlyReachedByItsWorstCase) {
  // One large element, all others just below half a level: they are sent as zeros.
  const std::size_t n = 1024;
  std::vector<float> g(n, 0.4999F / 127.0F);
  g[7] = 1.0F;
  const auto codec = codec_of("int8");
  const auto state = state_of(*codec, n, false);
  const double lost = squared_distance(decode(*codec, *state, encode(*codec, *state, g), n), g);
  const double bound = 1.0 - *codec->contraction(Shape::flat(n));
  EXPECT_LE(lost, bound * squares(g));
  EXPECT_GE(lost, 0.99 * bound * squares(g));
}

/// E‖decode(encode(x)) − x‖² / ‖x‖² over a few steps, without feedback.
double relative_error(const std::string& text, const std::vector<float>& x) {
  constexpr std::uint64_t kSteps = 8;
  const auto codec = codec_of(text);
  const auto state = state_of(*codec, x.size(), false);
  double error = 0.0;
  double size = 0.0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const Encoded sent = encode(*codec, *state, x, 1, step);
    const std::vector<float> got = decode(*codec, *state, sent, x.size(), step);
    for (std::size_t i = 0; i < x.size(); ++i) {
      error += (double{got[i]} - x[i]) * (double{got[i]} - x[i]) / kSteps;
      size += double{x[i]} * x[i] / kSteps;
    }
  }
  return error / size;
}

TEST(Kashin, ErrsLessThanQsgdOfAsManyBits) {
  constexpr std::size_t kElements = 1 << 16;
  std::vector<float> spikes(kElements, 0.0F);
  for (std::size_t i = 0; i < kElements; i += 1024) spikes[i + i / 1024] = 1.0F;
  std::vector<float> uniform(kElements);
  for (std::size_t i = 0; i < kElements; ++i) {
    uniform[i] = static_cast<float>((i * 2654435761U) % 65536) / 32768.0F - 1.0F;
  }
  // A spike is what qsgd sends exactly: its norm is the one element.
  const std::vector<std::pair<std::string, std::vector<float>>> inputs = {
      {"heavy tail", test::gradient(kElements, 5)}, {"uniform", uniform}, {"a spike each", spikes}};
  for (const auto& [name, x] : inputs) {
    for (const std::string bits : {"2", "4", "8"}) {
      const double qsgd = relative_error("qsgd:" + bits, x);
      const double kashin = relative_error("kashin:" + bits, x);
      std::printf("%-12s %s bits: qsgd %.3g, kashin %.3g\n", name.c_str(), bits.c_str(), qsgd,
                  kashin);
      if (name != "a spike each") {
        EXPECT_LT(kashin, 0.5 * qsgd) << name << ", " << bits << " bits";
      }
      // Whatever the gradient, all coefficients are of one size.
      EXPECT_LE(kashin, *codec_of("kashin:" + bits)->variance(Shape::flat(kElements)));
    }
  }
}

}  // namespace
}  // namespace gradpress
