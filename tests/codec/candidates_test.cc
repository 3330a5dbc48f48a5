#include "codec/candidates.h"

#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/gradient.h"

namespace gradpress::codec {
namespace {

/// Indices of the k first by (larger key, then smaller index), ascending.
std::vector<std::uint32_t> largest(const std::vector<float>& x, kernels::KeyMap key,
                                   std::size_t k) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < x.size(); ++i) {
    if (key(x[i]) >> 31 == 0) order.push_back(i);
  }
  std::ranges::stable_sort(order, [&](auto a, auto b) { return key(x[a]) > key(x[b]); });
  order.resize(std::min(order.size(), k));
  std::ranges::sort(order);
  return order;
}

struct Outcome {
  std::vector<std::uint32_t> index;
  std::uint32_t complete_from = 0;
};

struct Data {
  const std::vector<float>& grad;
  std::vector<float> stored;
  kernels::KeyMap key = kernels::kByMagnitude;
  std::uint64_t seed = 1;
};

Outcome select(Data data, std::size_t k, std::uint64_t sample_elems) {
  std::vector<float> x = data.grad;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += data.stored[i];
  Candidates candidates({.elements = x.size(), .kept = k, .sample_elems = sample_elems});
  (void)candidates.collect({.grad = data.grad,
                            .stored = data.stored,
                            .key = data.key,
                            .kept = k,
                            .sample_elems = sample_elems,
                            .random = kernels::random_key({.seed = data.seed})});
  EXPECT_EQ(data.stored, x);
  // Completeness, before anything is cut.
  const std::uint32_t from = candidates.complete_from();
  std::size_t above = 0;
  for (const float v : x) above += data.key(v) >> 31 == 0 && data.key(v) >= from ? 1 : 0;
  EXPECT_EQ(candidates.count_from(from), above);
  candidates.keep_largest(k);
  return {.index = {candidates.index().begin(), candidates.index().end()}, .complete_from = from};
}

/// From an empty residual.
Outcome select(const std::vector<float>& g, std::size_t k, std::uint64_t sample_elems,
               kernels::KeyMap key = kernels::kByMagnitude) {
  return select({.grad = g, .stored = std::vector<float>(g.size()), .key = key}, k, sample_elems);
}

TEST(CandidatesTest, MemoryStaysBoundedAndTheResultExactWhenEveryElementIsLargerThanTheLast) {
  std::vector<float> g(100'000);
  for (std::size_t i = 0; i < g.size(); ++i)
    g[i] = static_cast<float>(i + 1) * (i % 2 != 0 ? 1.0F : -1.0F);
  for (const std::size_t k : {1U, 10U, 1000U}) {
    const Outcome got = select(g, k, /*sample_elems=*/0);
    EXPECT_EQ(got.index, largest(g, kernels::kByMagnitude, k));
    EXPECT_GT(got.complete_from, 0U) << "never ran out of room: this run would prove nothing";
  }
}

TEST(CandidatesTest, OfEqualElementsTheFirstOnesWinAcrossCuts) {
  std::vector<float> g(100'000, -0.25F);
  g[99'999] = 1.0F;
  const Outcome got = select(g, 100, 0);
  EXPECT_EQ(got.index, largest(g, kernels::kByMagnitude, 100));
  EXPECT_EQ(got.index.back(), 99'999U);
}

TEST(CandidatesTest, ASampleThatMisleadsCostsASecondPassButNotExactness) {
  // Whole cache lines of one magnitude: the sample holds far less than it seems to. What is carried
  // in the residual may be beyond what a gradient may be.
  for (const float scale : {1.0F, 16.0F * kGradientLimit}) {
    std::size_t second_passes = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      auto stored = test::gradient(6'000, seed);
      for (std::size_t i = 0; i < stored.size(); ++i) {
        stored[i] = i % 16 == 0 ? stored[i] * scale : stored[i / 16 * 16];
      }
      const std::vector<float> g(stored.size());
      const Outcome got = select({.grad = g, .stored = stored, .seed = seed}, 60, 1024);
      EXPECT_EQ(got.index, largest(stored, kernels::kByMagnitude, 60)) << "seed=" << seed;
      second_passes += got.complete_from == 0 ? 1 : 0;
    }
    EXPECT_GT(second_passes, 0U) << "no sample misled: this run would prove nothing";
    EXPECT_LT(second_passes, 40U);
  }
}

TEST(CandidatesTest, BothSignsAreSelectedByThemselves) {
  const auto g = test::gradient(50'000, 3);
  for (const auto key : {kernels::kByValue, kernels::kByNegative}) {
    for (const std::size_t k : {1U, 500U}) {
      EXPECT_EQ(select(g, k, default_sample(g.size()), key).index, largest(g, key, k));
    }
  }
}

TEST(CandidatesTest, FewerOfASignThanWantedAreAllTaken) {
  std::vector<float> g(5'000, -1.0F);
  for (std::size_t i = 0; i < g.size(); i += 1000) g[i] = 0.5F;
  g[7] = 0.0F;
  const Outcome got = select(g, 50, 1024, kernels::kByValue);
  EXPECT_EQ(got.index, (std::vector<std::uint32_t>{0, 1000, 2000, 3000, 4000}));
}

TEST(CandidatesTest, WithoutAResidualTheGradientAloneIsSelected) {
  const auto g = test::gradient(30'000, 4);
  Candidates candidates({.elements = g.size(), .kept = 300, .sample_elems = 1024});
  (void)candidates.collect(
      {.grad = g, .stored = {}, .kept = 300, .sample_elems = 1024, .sample_ratio = 0.01});
  EXPECT_GE(candidates.sampled_rank(), candidates.complete_from());
  candidates.keep_largest(300);
  const auto want = largest(g, kernels::kByMagnitude, 300);
  EXPECT_TRUE(std::ranges::equal(candidates.index(), want));
}

}  // namespace
}  // namespace gradpress::codec
