#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "codec/site.h"
#include "kernels/random.h"
#include "support/gradient.h"

namespace gradpress::test {
namespace {

// --- topk ------------------------------------------------------------------------------------

TEST(TopK, SendsExactlyTheLargestOfAnyData) {
  for (const std::size_t n : {1U, 2U, 15U, 16U, 17U, 100U, 4096U, 4097U, 20'000U, 120'000U}) {
    for (const char* text : {"topk:0.0001", "topk:0.01", "topk:0.3", "topk:1"}) {
      auto rising = test::gradient(n, 6);
      std::ranges::sort(rising, {}, [](float v) { return std::fabs(v); });
      auto equal = test::gradient(n, 7);
      for (float& v : equal) v = std::copysign(0.5F, v);
      for (const auto& g : {test::gradient(n, 5), rising, equal}) {
        Site site(text, n);
        ASSERT_EQ(site.encode(g), pairs_of_largest(g, kept(text, n))) << text << " n=" << n;
      }
    }
  }
}

TEST(TopK, TheResidualIsExactlyWhatWasNotSent) {
  constexpr std::size_t kSize = 20'000;
  Site site("topk:0.01", kSize);
  std::vector<float> residual(kSize);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const auto x = sum(residual, test::gradient(kSize, step));
    ASSERT_EQ(site.encode(test::gradient(kSize, step)), pairs_of_largest(x, 200));
    residual = x;
    const auto order = by_magnitude(x);
    for (const std::uint32_t i : std::span(order).first(200)) residual[i] = 0.0F;
    ASSERT_EQ(site.residual(), residual);
  }
}

TEST(TopK, ShardsAreSelectedEachByItself) {
  const auto g = test::gradient(10'001, 2);
  Site whole("topk:0.01", g.size());
  Bytes out(whole.codec().encode_bound(Shape::flat(g.size()), 3));
  std::vector<std::size_t> sizes(3);
  const auto used =
      whole.codec().encode(whole.state(), {.grad = g, .shards = 3, .reduced = {}}, out, sizes);
  ASSERT_TRUE(used.has_value());
  Bytes want;
  for (std::uint32_t i = 0; i < 3; ++i) {
    const ShardRange range = shard_range(g.size(), 3, i);
    const std::vector<float> part(g.begin() + static_cast<long>(range.begin),
                                  g.begin() + static_cast<long>(range.begin + range.count));
    const Bytes bytes = pairs_of_largest(part, kept("topk:0.01", part.size()));
    want.insert(want.end(), bytes.begin(), bytes.end());
  }
  out.resize(*used);
  EXPECT_EQ(out, want);
}

// --- randomk ---------------------------------------------------------------------------------

TEST(RandomK, SendsTheValueOfEachStratumThatTheKeyDraws) {
  constexpr std::size_t kSize = 10'007;
  Site site("randomk:0.01", StateOptions{.shape = Shape::flat(kSize),
                                         .seed = 11,
                                         .tensor = 5,
                                         .site = 1,
                                         .first_shard = 4,
                                         .feedback = {}});
  const auto g = test::gradient(kSize, 1);
  const Bytes payload = site.encode(g);
  const std::uint64_t k = kept("randomk:0.01", kSize);
  ASSERT_EQ(payload.size(), 4 * k);
  const auto key = kernels::random_key({.seed = 11, .tensor = 5, .step = 0, .site = 1, .shard = 4});
  std::vector<float> want(kSize);
  auto residual = g;
  for (std::uint64_t j = 0; j < k; ++j) {
    const std::uint64_t begin = j * kSize / k;
    const std::uint64_t width = (j + 1) * kSize / k - begin;
    const std::uint64_t at =
        begin + (kernels::random_word(key, static_cast<std::uint32_t>(j)) * width >> 32);
    ASSERT_EQ(word<float>(payload, j), g[at]);
    want[at] = g[at];
    residual[at] = 0.0F;
  }
  std::vector<float> dst(kSize);
  ASSERT_TRUE(site.decode(payload, dst, 4).is_ok());
  EXPECT_EQ(dst, want);
  EXPECT_EQ(site.residual(), residual);
}

TEST(RandomK, SumsOfPayloadsDecodeToTheSum) {
  constexpr std::size_t kSize = 3000;
  Site a("randomk:0.05", kSize), b("randomk:0.05", kSize);
  Bytes total = a.encode(test::gradient(kSize, 1));
  const Bytes other = b.encode(test::gradient(kSize, 2));
  for (std::size_t i = 0; i < total.size() / 4; ++i) {
    const float value = word<float>(total, i) + word<float>(other, i);
    std::memcpy(total.data() + 4 * i, &value, 4);
  }
  std::vector<float> dst(kSize);
  ASSERT_TRUE(a.decode(total, dst).is_ok());
  EXPECT_EQ(dst, sum(a.decoded(), b.decoded()));
}

// --- dgc -------------------------------------------------------------------------------------

TEST(Dgc, SendsTheLargestAndAtLeastFourFifthsOfWhatItMay) {
  std::size_t by_threshold = 0;
  for (const std::size_t n : {50U, 2000U, 30'000U, 200'000U}) {
    Site site("dgc:0.01", n);
    std::vector<float> residual(n);
    for (std::uint64_t step = 0; step < 8; ++step) {
      const auto g = test::gradient(n, 31 * n + step);
      const auto x = sum(residual, g);
      const Bytes payload = site.encode(g);
      const std::size_t k = kept("dgc:0.01", n);
      const std::size_t c = payload.size() / 8;
      ASSERT_GE(static_cast<double>(c), 0.8 * static_cast<double>(k));
      ASSERT_LE(c, k);
      ASSERT_EQ(payload, pairs_of_largest(x, c)) << "n=" << n << " step=" << step;
      by_threshold += c < k ? 1 : 0;
      residual = site.residual();
    }
  }
  EXPECT_GT(by_threshold, 0U) << "no threshold was ever used";
}

TEST(Dgc, LowersAThresholdThatLetsTooFewThroughAndFallsBackToTheLargest) {
  // Line-wise equal magnitudes make single samples far off in both directions.
  constexpr std::size_t kSize = 40'000;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    auto g = test::gradient(kSize, seed);
    for (std::size_t i = 0; i < kSize; ++i) g[i] = g[i / 16 * 16];
    Site site("dgc:0.005", StateOptions{.shape = Shape::flat(kSize), .seed = seed, .feedback = {}});
    const Bytes payload = site.encode(g);
    const std::size_t c = payload.size() / 8;
    EXPECT_GE(c, 160U);
    EXPECT_LE(c, 200U);
    EXPECT_EQ(payload, pairs_of_largest(g, c)) << "seed=" << seed;
  }
}

// --- redsync ---------------------------------------------------------------------------------

TEST(RedSync, ExactAndTrimmedSelectionSendTheSameAsTopK) {
  for (const char* text : {"redsync:0.01", "redsync:0.01:exact=0", "redsync:0.01:exact=0:trim=0.1",
                           "redsync:0.01:exact=0:trim=0.9:trim-step=0.001"}) {
    Site redsync(text, 50'000), topk("topk:0.01", 50'000);
    for (std::uint64_t step = 0; step < 4; ++step) {
      const auto g = test::gradient(50'000, step);
      ASSERT_EQ(redsync.encode(g), topk.encode(g)) << text;
    }
  }
}

TEST(RedSync, TheSearchSendsTheLargestWithinItsBand) {
  int more_than_kept = 0;
  for (const char* text :
       {"redsync:0.01:exact=0:trimmed=0", "redsync:0.001:exact=0:trimmed=0:reuse=1",
        "redsync:0.05:exact=0:trimmed=0:low=0.9:high=1.1", "redsync:0.01:exact=0:trimmed=0:cut=1",
        "redsync:0.01:exact=0:trimmed=0:probes=1:low=0.99:high=1"}) {
    const codec::Spec spec = codec::parse_spec(text).value();
    for (const std::size_t n : {3U, 700U, 40'000U}) {
      Site site(text, n);
      std::vector<float> residual(n);
      for (std::uint64_t step = 0; step < 12; ++step) {
        const auto g = test::gradient(n, 17 * n + step);
        const auto x = sum(residual, g);
        const Bytes payload = site.encode(g);
        const std::size_t c = payload.size() / 8;
        const auto k = static_cast<double>(kept(text, n));
        ASSERT_GT(static_cast<double>(c), spec.redsync.band_low * k);
        ASSERT_LE(c, codec::most_kept(spec, n));
        if (spec.redsync.cut != 0) {
          ASSERT_LE(c, kept(text, n));
        }
        more_than_kept += c > kept(text, n) ? 1 : 0;
        ASSERT_EQ(payload, pairs_of_largest(x, c)) << text << " n=" << n << " step=" << step;
        residual = site.residual();
      }
    }
  }
  EXPECT_GT(more_than_kept, 0) << "the published rule sends more than k at times";
}

TEST(RedSync, AboveFourMiElementsTheBoundIsThatOfTheBand) {
  constexpr std::uint64_t kAtMost = std::uint64_t{4} << 20;
  const auto bytes = [](const char* text, std::uint64_t n) {
    return codec::payload_bytes(codec::parse_spec(text).value(), Shape::flat(n));
  };
  EXPECT_EQ(bytes("redsync:0.001", kAtMost), 8U * 4195);
  EXPECT_EQ(bytes("redsync:0.001", kAtMost + 1), 8U * 6292) << "fewer than 1.5 x 4195";
  EXPECT_EQ(bytes("redsync:0.001:high=2", kAtMost + 1), 8U * 8389);
  EXPECT_EQ(bytes("redsync:0.001:cut=1", kAtMost + 1), 8U * 4195);
  EXPECT_EQ(bytes("redsync-q:0.001", kAtMost + 1), 4U * 6292 + 4);
}

TEST(RedSync, EqualMagnitudesAreAboveNoThresholdAndStillSent) {
  for (const char* text : {"redsync:0.01:exact=0", "redsync:0.01:exact=0:trimmed=0"}) {
    std::vector<float> g(5000, -0.5F);
    for (std::size_t i = 0; i < g.size(); i += 3) g[i] = 0.5F;
    Site site(text, g.size());
    EXPECT_EQ(site.encode(g), pairs_of_largest(g, 50)) << text;
  }
}

TEST(RedSync, AFoundRatioServesItsStepsAndIsDroppedWhenItNoLongerFits) {
  constexpr std::size_t kSize = 40'000;
  Site site("redsync:0.01:exact=0:trimmed=0:reuse=4", kSize);
  const auto g = test::gradient(kSize, 1);
  const auto steps_left = [&] { return word<std::uint32_t>(site.state().save_extras(), 3); };
  const std::vector<float> zeros(kSize);
  for (const std::uint32_t want : {3U, 2U, 1U, 0U, 3U, 2U}) {
    ASSERT_TRUE(site.state().load(zeros).is_ok());  // the same sums every step
    site.encode(g);
    EXPECT_EQ(steps_left(), want);
  }
  // One huge element moves every threshold: the ratio would send that alone, so it is searched
  // anew.
  auto spike = g;
  spike[5] = 1e6F;
  site.encode(spike);
  EXPECT_NE(steps_left(), 1U);
}

TEST(RedSyncQ, TurnsTheDirectionAndKeepsWhatTheMeanMisses) {
  for (const char* text :
       {"redsync-q:0.01", "redsync-q:0.01:exact=0", "redsync-q:0.01:exact=0:trimmed=0"}) {
    constexpr std::size_t kSize = 40'000;
    Site site(text, kSize);
    std::vector<float> residual(kSize);
    for (std::uint64_t step = 0; step < 6; ++step) {
      const auto g = test::gradient(kSize, step);
      auto x = sum(residual, g);
      const Bytes payload = site.encode(g);
      const auto mean = word<float>(payload, 0);
      const std::size_t c = payload.size() / 4 - 1;
      ASSERT_GT(c, 200U);
      ASSERT_LT(c, 600U);
      const float sign = step % 2 == 0 ? 1.0F : -1.0F;
      auto signed_part = x;
      for (float& v : signed_part) v = std::max(v * sign, 0.0F);
      auto want = by_magnitude(signed_part);
      want.resize(c);
      std::ranges::sort(want);
      double total = 0.0;
      for (std::size_t i = 0; i < c; ++i) {
        ASSERT_EQ(word<std::uint32_t>(payload, i + 1), want[i]) << text << " step=" << step;
        total += static_cast<double>(x[want[i]]);
        x[want[i]] -= mean;
      }
      EXPECT_GT(mean * sign, 0.0F);
      EXPECT_FLOAT_EQ(mean, static_cast<float>(total / static_cast<double>(c)));
      residual = site.residual();
      ASSERT_EQ(residual, x) << text << " step=" << step;
    }
  }
}

TEST(RedSyncQ, WithoutElementsOfTheStepsSignOnlyAZeroTravels) {
  const Bytes nothing(4, std::byte{0});
  constexpr std::size_t kSome = 4 + 4 * 50;
  for (const char* text :
       {"redsync-q:0.01", "redsync-q:0.01:exact=0", "redsync-q:0.01:exact=0:trimmed=0"}) {
    const std::vector<float> negative(5000, -1.0F);
    Site below(text, negative.size());
    EXPECT_EQ(below.encode(negative), nothing) << text;
    EXPECT_EQ(below.residual(), negative);
    EXPECT_EQ(below.encode(negative).size(), kSome) << text;  // the other sign's turn

    const std::vector<float> positive(5000, 1.0F);
    Site above(text, positive.size());
    EXPECT_EQ(above.encode(positive).size(), kSome) << text;
    EXPECT_EQ(above.encode(positive), nothing) << text;
  }
}

}  // namespace
}  // namespace gradpress::test
