#include "kernels/sparse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/gradient.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

constexpr float kLimit = 1e17F;

/// Bytes at an odd address.
template <class T>
class OddBytes {
 public:
  explicit OddBytes(const std::vector<T>& from) : bytes_(from.size() * sizeof(T) + 1) {
    if (!from.empty()) std::memcpy(bytes_.data() + 1, from.data(), from.size() * sizeof(T));
  }
  std::span<const std::byte> span() const { return std::span(bytes_).subspan(1); }

 private:
  std::vector<std::byte> bytes_;
};

class Sparse : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(Sparse);

TEST_P(Sparse, AddInRangeAgreesWithScalarOnEveryTailAndSkipsWhatIsOutOfRange) {
  for (std::size_t n = 0; n <= 67; ++n) {
    for (std::size_t bad = 0; bad <= n; ++bad) {  // bad == n: none
      auto g = test::gradient(n + 1, n + 1);
      auto x = test::gradient(n + 2, n + 2);
      const auto before = x;
      if (bad < n) g[1 + bad] = bad % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : -kLimit;
      const bool fine = add_in_range(std::span(g).subspan(1), std::span(x).subspan(1, n), kLimit);
      EXPECT_EQ(fine, bad == n);
      for (std::size_t i = 1; i <= n; ++i) {
        ASSERT_EQ(x[i], i == bad + 1 ? before[i] : before[i] + g[i]) << "n=" << n << " i=" << i;
      }
      EXPECT_EQ(x[0], before[0]);
      EXPECT_EQ(x.back(), before.back());
    }
  }
}

TEST(StrataTest, DrawsOneIndexOfEachStratumAsTheFormulaSays) {
  const RandomKey key = random_key({.seed = 3, .tensor = 1, .step = 4, .site = 1, .shard = 5});
  struct Case {
    std::uint64_t n, k;
  };
  for (const Case c : {Case{1, 1}, Case{7, 7}, Case{10, 3}, Case{1000, 999}, Case{4294967295U, 1},
                       Case{4294967295U, 1000}, Case{4000000000U, 12345}}) {
    Strata strata(c.n, c.k, key);
    for (std::uint64_t j = 0; j < c.k; ++j) {
      const std::uint64_t begin = j * c.n / c.k;
      const std::uint64_t width = (j + 1) * c.n / c.k - begin;
      const std::uint64_t word = random_word(key, static_cast<std::uint32_t>(j));
      ASSERT_EQ(strata.next(), begin + (word * width >> 32)) << c.n << " " << c.k << " " << j;
    }
  }
}

TEST(Entries, IndicesMustAscendStrictlyBelowTheEnd) {
  const auto valid = [](const std::vector<std::uint32_t>& indices, std::uint64_t n) {
    return indices_valid(OddBytes(indices).span(), n);
  };
  EXPECT_TRUE(valid({}, 0));
  EXPECT_TRUE(valid({0}, 1));
  EXPECT_FALSE(valid({0}, 0));
  EXPECT_FALSE(valid({1}, 1));
  EXPECT_TRUE(valid({0, 1, 2'147'483'648U, 4'294'967'294U}, 4'294'967'295U));
  EXPECT_FALSE(valid({0, 1, 4'294'967'295U}, 4'294'967'295U));
  EXPECT_FALSE(valid({3, 3}, 10));
  EXPECT_FALSE(valid({9, 3, 9}, 10));
  EXPECT_FALSE(valid({9, 3}, 10));
  EXPECT_FALSE(valid({4'000'000'000U, 3}, 10));
}

TEST(Entries, ValuesMustBeFinite) {
  const auto finite = [](const std::vector<float>& values) {
    return values_finite(OddBytes(values).span());
  };
  EXPECT_TRUE(finite({}));
  EXPECT_TRUE(finite({0.0F, -1.0F, std::numeric_limits<float>::max(), 1e-45F}));
  EXPECT_FALSE(finite({1.0F, std::numeric_limits<float>::infinity()}));
  EXPECT_FALSE(finite({-std::numeric_limits<float>::infinity(), 1.0F}));
  EXPECT_FALSE(finite({1.0F, std::numeric_limits<float>::quiet_NaN(), 1.0F}));
}

TEST(Entries, ScatterTouchesExactlyItsIndicesWhateverTheirNumber) {
  for (std::uint32_t count = 0; count <= 67; ++count) {
    std::vector<std::uint32_t> indices;
    std::vector<float> values;
    for (std::uint32_t i = 0; i < count; ++i) {
      indices.push_back(3 * i + 1);
      values.push_back(static_cast<float>(i) - 20.0F);
    }
    const OddBytes at(indices);
    std::vector<float> pairs(3 * count + 2, 1.0F), same = pairs, cleared = pairs;
    scatter_add(at.span(), OddBytes(values).span(), 0.5F, pairs);
    scatter_add(at.span(), -4.0F, same);
    scatter_zero(at.span(), cleared);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const bool hit = i % 3 == 1 && i / 3 < count;
      ASSERT_EQ(pairs[i], hit ? 1.0F + 0.5F * values[i / 3] : 1.0F);
      ASSERT_EQ(same[i], hit ? -3.0F : 1.0F);
      ASSERT_EQ(cleared[i], hit ? 0.0F : 1.0F);
    }
  }
}

}  // namespace
}  // namespace gradpress::kernels
