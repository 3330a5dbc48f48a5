#include "codec/momentum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "support/gradient.h"

namespace gradpress::codec {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::size_t kSize = 6000;

class Site {
 public:
  Site(std::string_view text, const MomentumOptions& options, std::size_t n = kSize)
      : codec_(std::move(with_momentum(std::move(make_codec(text).value()), options).value())),
        state_(std::move(codec_->make_state({.shape = Shape::flat(n), .feedback = {}}).value())) {}

  MomentumState& state() { return dynamic_cast<MomentumState&>(*state_); }
  Result<Bytes> encode(std::span<const float> g, std::uint32_t shards = 1) {
    Bytes out(codec_->encode_bound(state_->shape(), shards));
    std::vector<std::size_t> sizes(shards);
    const auto used = codec_->encode(
        *state_, {.grad = g, .shards = shards, .step = step_++, .reduced = {}}, out, sizes);
    if (!used) return tl::unexpected(used.error());
    out.resize(*used);
    return out;
  }
  std::vector<float> decoded(const Bytes& payload) {
    std::vector<float> dst(state_->shape().elements());
    EXPECT_TRUE(codec_->decode(*state_, {.payload = payload, .step = step_ - 1}, dst).is_ok());
    return dst;
  }
  std::vector<float> residual() {
    std::vector<float> out(state_->shape().elements());
    state_->materialise(out);
    return out;
  }
  std::vector<float> momentum() { return {state().momentum().begin(), state().momentum().end()}; }

 private:
  std::unique_ptr<const Codec> codec_;
  std::unique_ptr<State> state_;
  std::uint64_t step_ = 0;
};

/// DGC's two accumulators and exact top-k, written out.
struct Reference {
  float mu = 0.9F;
  bool nesterov = false;
  bool masking = true;
  std::vector<float> u = std::vector<float>(kSize);
  std::vector<float> v = std::vector<float>(kSize);
  double dropped = 0.0;

  std::vector<float> step(const std::vector<float>& g, std::size_t k) {
    for (std::size_t i = 0; i < kSize; ++i) {
      u[i] = nesterov ? mu * (u[i] + g[i]) : mu * u[i] + g[i];
      v[i] = (nesterov ? u[i] + g[i] : u[i]) + v[i];
    }
    std::vector<std::uint32_t> order(kSize);
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::stable_sort(order,
                             [&](auto a, auto b) { return std::fabs(v[a]) > std::fabs(v[b]); });
    std::vector<float> sent(kSize);
    for (const std::uint32_t i : std::span(order).first(k)) {
      sent[i] = v[i];
      v[i] = 0.0F;
      if (masking) {
        dropped += static_cast<double>(std::fabs(u[i]));
        u[i] = 0.0F;
      }
    }
    return sent;
  }
};

TEST(WithMomentum, AgreesWithDgcsAccumulatorsWrittenOut) {
  for (const bool nesterov : {false, true}) {
    for (const bool masking : {false, true}) {
      Site site("topk:0.01", {.momentum = 0.9, .nesterov = nesterov, .masking = masking});
      Reference reference{.nesterov = nesterov, .masking = masking};
      for (std::uint64_t step = 0; step < 10; ++step) {
        const auto g = test::gradient(kSize, step);
        const auto sent = reference.step(g, 60);
        ASSERT_EQ(site.decoded(site.encode(g).value()), sent) << "step " << step;
        ASSERT_EQ(site.momentum(), reference.u);
        ASSERT_EQ(site.residual(), reference.v);
      }
      EXPECT_NEAR(site.state().dropped(), reference.dropped, 1e-9 * reference.dropped);
      EXPECT_EQ(site.state().dropped() > 0.0, masking);
    }
  }
}

TEST(WithMomentum, MasksExactlyWhatEverySparsifierSent) {
  for (const char* text :
       {"topk:0.01", "randomk:0.01", "dgc:0.01", "redsync:0.01", "redsync-q:0.01"}) {
    for (const std::uint32_t shards : {1U, 3U}) {
      Site site(text, {});
      std::vector<float> g(kSize);
      for (std::size_t i = 0; i < kSize; ++i) g[i] = static_cast<float>(i % 97) - 48.5F;
      const Bytes payload = site.encode(g, shards).value();
      const auto after = site.momentum();
      const auto masked = std::ranges::count(after, 0.0F);
      EXPECT_GE(masked, 40) << text;
      EXPECT_LE(masked, 63) << text;
      if (shards > 1) continue;
      const auto sent = site.decoded(payload);
      for (std::size_t i = 0; i < kSize; ++i) ASSERT_EQ(after[i], sent[i] != 0.0F ? 0.0F : g[i]);
    }
  }
}

TEST(WithMomentum, ClipsOneWorkersShareOfTheNorm) {
  Site site("topk:1", {.momentum = 0.0, .clip_norm = 2.0, .workers = 4}, 4);
  const std::vector<float> large = {3.0F, 0.0F, -4.0F, 0.0F};  // norm 5, clipped to 2/√4
  EXPECT_EQ(site.decoded(site.encode(large).value()),
            (std::vector<float>{0.2F * 3.0F, 0.0F, -0.2F * 4.0F, 0.0F}));
  const std::vector<float> small = {0.25F, 0.0F, -0.5F, 0.0F};
  EXPECT_EQ(site.decoded(site.encode(small).value()), small);
}

TEST(WithMomentum, ARefusedGradientChangesNeitherResidualNorMomentum) {
  Site site("redsync-q:0.01", {});
  for (std::uint64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(site.encode(test::gradient(kSize, step)).has_value());
  }
  const auto residual = site.residual();
  const Bytes extras = site.state().save_extras();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kGradientLimit}) {
    auto g = test::gradient(kSize, 9);
    g[kSize - 1] = bad;
    const auto refused = site.encode(g);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), Code::kNonFinite);
  }
  EXPECT_EQ(site.residual(), residual);
  EXPECT_EQ(site.state().save_extras(), extras);
}

TEST(WithMomentum, GradientsInRangeWhoseMomentumIsNotAreRefusedWhole) {
  Site site("topk:0.5", {.masking = false}, 2);
  const std::vector<float> g = {0.75F * kGradientLimit, 1.0F};
  ASSERT_TRUE(site.encode(g).has_value());
  const auto residual = site.residual();
  const auto momentum = site.momentum();
  const auto refused = site.encode(g);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kNonFinite);
  EXPECT_EQ(site.residual(), residual);
  EXPECT_EQ(site.momentum(), momentum);
}

TEST(WithMomentum, ExtrasHoldTheMomentumAndForeignOnesAreRefused) {
  Site first("redsync-q:0.01", {}), second("redsync-q:0.01", {});
  ASSERT_TRUE(first.encode(test::gradient(kSize, 1)).has_value());
  ASSERT_TRUE(second.encode(test::gradient(kSize, 2)).has_value());
  ASSERT_TRUE(second.encode(test::gradient(kSize, 3)).has_value());
  ASSERT_TRUE(first.encode(test::gradient(kSize, 4)).has_value());
  ASSERT_TRUE(first.encode(test::gradient(kSize, 5)).has_value());
  ASSERT_TRUE(second.encode(test::gradient(kSize, 5)).has_value());
  Bytes extras = first.state().save_extras();
  ASSERT_TRUE(second.state().load(first.residual()).is_ok());
  ASSERT_TRUE(second.state().load_extras(extras).is_ok());
  EXPECT_EQ(second.momentum(), first.momentum());
  EXPECT_EQ(second.state().dropped(), first.state().dropped());
  EXPECT_EQ(first.encode(test::gradient(kSize, 6)).value(),
            second.encode(test::gradient(kSize, 6)).value());

  const Bytes before = second.state().save_extras();
  const auto refused = [&](const Bytes& bytes) {
    return second.state().load_extras(bytes).code() == Code::kCorruptPayload &&
           second.state().save_extras() == before;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused(Bytes(extras.begin(), extras.end() - 1)));
  Bytes poisoned = extras;
  std::fill_n(poisoned.begin() + 8 + 40, 4, std::byte{0xFF});
  EXPECT_TRUE(refused(poisoned));
  Bytes wrong_inner = extras;
  wrong_inner.back() = std::byte{9};
  EXPECT_TRUE(refused(wrong_inner));
}

TEST(WithMomentum, ScaleScalesResidualAndMomentum) {
  Site site("topk:0.01", {});
  ASSERT_TRUE(site.encode(test::gradient(kSize, 1)).has_value());
  auto residual = site.residual();
  auto momentum = site.momentum();
  site.state().scale(-0.5F);
  for (float& v : residual) v *= -0.5F;
  for (float& v : momentum) v *= -0.5F;
  EXPECT_EQ(site.residual(), residual);
  EXPECT_EQ(site.momentum(), momentum);
}

TEST(WithMomentum, RefusesDenseCodecsAndOptionsOutOfRange) {
  const auto refused = [](std::string_view text, const MomentumOptions& options) {
    const auto made = with_momentum(std::move(make_codec(text).value()), options);
    return !made.has_value() && made.error().code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused("efsign", {}));
  EXPECT_TRUE(refused("topk:0.1", {.momentum = 1.0}));
  EXPECT_TRUE(refused("topk:0.1", {.momentum = -0.1}));
  EXPECT_TRUE(refused("topk:0.1", {.clip_norm = -1.0}));
  EXPECT_TRUE(refused("topk:0.1", {.workers = 0}));
  EXPECT_FALSE(with_momentum(nullptr, {}).has_value());
}

}  // namespace
}  // namespace gradpress::codec
