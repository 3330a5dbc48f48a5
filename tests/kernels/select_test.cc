#include "kernels/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "support/gradient.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

constexpr float kLimit = 1e17F;
constexpr std::array kMaps = {kByMagnitude, kByValue, kByNegative};

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

/// The key as a number, written without bit tricks.
float key_of(float x, KeyMap map) {
  if (map.mask == kByMagnitude.mask) return std::fabs(x);
  return map.flip == 0 ? x : -x;
}

struct Expected {
  std::vector<float> x;
  std::vector<std::uint32_t> index;
  std::vector<float> value;
  double sum = 0.0;
  double sum_magnitude = 0.0;
  float largest = 0.0F;
};

Expected scalar_scan(const std::vector<float>& g, const std::vector<float>& x, KeyMap map,
                     float threshold, std::uint32_t first) {
  Expected expected;
  for (std::size_t i = 0; i < g.size(); ++i) {
    const float v = x.empty() ? g[i] : g[i] + x[i];
    const float key = key_of(v, map);
    expected.x.push_back(v);
    expected.sum += static_cast<double>(key);
    expected.sum_magnitude += static_cast<double>(std::fabs(key));
    expected.largest = std::max(expected.largest, key);
    if (key >= threshold) {
      expected.index.push_back(first + static_cast<std::uint32_t>(i));
      expected.value.push_back(v);
    }
  }
  return expected;
}

class Select : public test::OnEveryTarget {
 protected:
  struct Case {
    std::size_t n = 0;
    std::size_t offset = 0;
    KeyMap map = {};
    float threshold = 0.0F;
    std::uint32_t first = 0;
  };

  void check(const Case& c) {
    SCOPED_TRACE(::testing::Message() << "n=" << c.n << " offset=" << c.offset
                                      << " threshold=" << c.threshold << " first=" << c.first);
    // Shifted so that no vector load is aligned; guard values behind the ends must survive.
    const auto g = test::gradient(c.n + c.offset, c.n + 1);
    auto x = test::gradient(c.n + c.offset + 1, c.n + 1000);
    const float guard = x.back();
    const std::vector<float> g_part(g.begin() + static_cast<long>(c.offset), g.end());
    const std::vector<float> x_part(x.begin() + static_cast<long>(c.offset), x.end() - 1);
    const ScanArgs args{
        .key = c.map, .threshold = bits(c.threshold), .first_index = c.first, .limit = kLimit};
    const auto with = scalar_scan(g_part, x_part, c.map, c.threshold, c.first);
    const auto without = scalar_scan(g_part, {}, c.map, c.threshold, c.first);
    expect(with, c.n, [&](auto index, auto value, ScanTotals& totals) {
      return scan_add(std::span(g).subspan(c.offset), std::span(x).subspan(c.offset, c.n), args,
                      index, value, totals);
    });
    for (std::size_t i = 0; i < c.n; ++i) ASSERT_EQ(x[c.offset + i], with.x[i]) << i;
    EXPECT_EQ(x.back(), guard) << "wrote past the end";
    expect(without, c.n, [&](auto index, auto value, ScanTotals& totals) {
      return scan(std::span(g).subspan(c.offset), args, index, value, totals);
    });
  }

  template <class Scan>
  void expect(const Expected& expected, std::size_t n, Scan run) {
    constexpr std::uint32_t kGuard = 0xABCDEF01U;
    std::vector<std::uint32_t> index(n + kScanSlack + 1, kGuard);
    std::vector<float> value(n + 1, 77.0F);
    ScanTotals totals;
    const std::size_t count =
        run(std::span(index).first(n + kScanSlack), std::span(value).first(n), totals);
    ASSERT_EQ(count, expected.index.size());
    EXPECT_TRUE(std::equal(expected.index.begin(), expected.index.end(), index.begin()));
    EXPECT_TRUE(std::equal(expected.value.begin(), expected.value.end(), value.begin()));
    EXPECT_EQ(index.back(), kGuard);
    EXPECT_EQ(value.back(), 77.0F);
    EXPECT_NEAR(totals.sum, expected.sum, 1e-5 * (1.0 + expected.sum_magnitude));
    EXPECT_EQ(totals.largest, expected.largest);
    EXPECT_TRUE(totals.in_range);
  }
};
GRADPRESS_ON_EVERY_TARGET(Select);

TEST_P(Select, ScanAgreesWithScalarOnEveryTailAlignmentAndKey) {
  for (std::size_t n = 0; n <= 140; ++n) {
    for (std::size_t offset = 0; offset < 2; ++offset) {
      for (const KeyMap map : kMaps) {
        for (const float threshold : {0.0F, 0.004F, 0.1F}) check({n, offset, map, threshold, 0});
      }
    }
  }
}

TEST_P(Select, ScanTakesAWholeBlockFullAndEmpty) {
  for (const std::size_t n : {kScanBlock - 1, kScanBlock}) {
    for (const float threshold : {0.0F, 0.01F, 1e30F}) check({n, 1, kByMagnitude, threshold, 5});
  }
}

TEST_P(Select, IndicesBeyondTwoToThe31AreRight) {
  for (const std::uint32_t first : {0x7FFFFFF0U, 0x80000000U, 3'000'000'000U, 0xFFFFFF00U}) {
    for (const std::size_t n : {std::size_t{63}, std::size_t{200}, std::size_t{255}}) {
      check({n, 0, kByMagnitude, 0.01F, first});
    }
  }
}

TEST_P(Select, AThresholdOfZeroTakesZerosByMagnitudeAndTheLeastTakesNoneOfTheOtherSign) {
  const std::vector<float> g = {0.0F, -0.0F, 1e-45F, -1e-45F, 3.0F, -2.0F};
  std::vector<std::uint32_t> index(g.size() + kScanSlack);
  std::vector<float> value(g.size());
  ScanTotals totals;
  EXPECT_EQ(scan(g, {.key = kByMagnitude, .threshold = 0, .limit = kLimit}, index, value, totals),
            g.size());
  ASSERT_EQ(scan(g, {.key = kByValue, .threshold = 1, .limit = kLimit}, index, value, totals), 2U);
  EXPECT_EQ(index[0], 2U);
  EXPECT_EQ(index[1], 4U);
  ASSERT_EQ(scan(g, {.key = kByNegative, .threshold = 1, .limit = kLimit}, index, value, totals),
            2U);
  EXPECT_EQ(index[0], 3U);
  EXPECT_EQ(index[1], 5U);
}

TEST_P(Select, TotalsAreBitEqualToTheFirstTargets) {
  const auto g = test::gradient(kScanBlock - 3, 5);
  std::vector<std::uint32_t> index(g.size() + kScanSlack);
  std::vector<float> value(g.size());
  ScanTotals here;
  (void)scan(g, {.key = kByValue, .threshold = bits(0.1F), .limit = kLimit}, index, value, here);
  static const ScanTotals first = here;
  EXPECT_EQ(here.sum, first.sum);
  EXPECT_EQ(here.largest, first.largest);
}

TEST_P(Select, ElementsOutOfRangeAreReportedAndLeaveTheirResidualWhole) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), kLimit, -2 * kLimit}) {
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{17}, std::size_t{64}, std::size_t{80}}) {
      auto g = test::gradient(81, 9);
      g[at] = bad;
      std::vector<float> x(g.size(), 0.5F);
      std::vector<std::uint32_t> index(g.size() + kScanSlack);
      std::vector<float> value(g.size());
      ScanTotals totals;
      (void)scan_add(g, x, {.threshold = bits(0.1F), .limit = kLimit}, index, value, totals);
      EXPECT_FALSE(totals.in_range);
      EXPECT_EQ(x[at], 0.5F);
      EXPECT_TRUE(std::isfinite(totals.sum));
    }
  }
}

TEST(Ranking, KthLargestAgreesWithSorting) {
  for (const std::size_t n : {1U, 2U, 3U, 50U, 1000U}) {
    auto values = test::gradient(n, n);
    for (std::size_t i = 0; i + 3 < n; i += 7) values[i] = -values[i + 3];  // equal magnitudes
    std::vector<float> sorted(n);
    std::ranges::transform(values, sorted.begin(), [](float v) { return std::fabs(v); });
    std::ranges::sort(sorted, std::greater<>());
    for (std::size_t k = 1; k <= n; ++k) {
      const Rank rank = kth_largest(values, kByMagnitude, k);
      ASSERT_EQ(rank.key, bits(sorted[k - 1])) << "n=" << n << " k=" << k;
      const auto above = static_cast<std::size_t>(
          std::ranges::count_if(sorted, [&](float v) { return v > sorted[k - 1]; }));
      ASSERT_EQ(rank.ties, k - above) << "n=" << n << " k=" << k;
      ASSERT_EQ(count_from(values, kByMagnitude, rank.key + 1), above);
    }
  }
}

TEST(Ranking, KthLargestSpansTheWholeRangeOfFloats) {
  const std::vector<float> values = {
      0.0F, 1e-45F, std::numeric_limits<float>::max(), 1.0F, std::nextafter(1.0F, 2.0F), 1e-38F};
  std::vector<float> sorted = values;
  std::ranges::sort(sorted, std::greater<>());
  for (std::size_t k = 1; k <= values.size(); ++k) {
    EXPECT_EQ(kth_largest(values, kByMagnitude, k).key, bits(sorted[k - 1]));
  }
}

TEST(Ranking, OfEqualKeysTheFirstOnesStay) {
  std::vector<std::uint32_t> index = {3, 5, 8, 9, 4'000'000'000U};
  std::vector<float> value = {1.0F, -2.0F, -1.0F, 1.0F, 5.0F};
  const Rank rank = kth_largest(value, kByMagnitude, 4);
  ASSERT_EQ(keep_ranked(index, value, kByMagnitude, rank), 4U);
  EXPECT_EQ(std::vector<std::uint32_t>(index.begin(), index.begin() + 4),
            (std::vector<std::uint32_t>{3, 5, 8, 4'000'000'000U}));
  EXPECT_EQ(value[2], -1.0F);
  EXPECT_EQ(value[3], 5.0F);
}

}  // namespace
}  // namespace gradpress::kernels
