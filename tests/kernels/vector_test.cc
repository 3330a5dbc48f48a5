#include "kernels/vector.h"

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
constexpr std::size_t kTails = 67;
const std::vector<float> kBad = {std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::infinity(),
                                 -std::numeric_limits<float>::infinity(), kLimit, -2 * kLimit};

/// Destination and source of n elements behind an offset that leaves no load aligned, with a guard
/// value behind the destination.
struct Operands {
  explicit Operands(std::size_t n)
      : count(n),
        offset(n % 3),
        a(test::gradient(n + offset + 1, n + 1)),
        b(test::gradient(n + offset, n + 900)),
        before(a) {}
  std::span<float> dst() { return std::span(a).subspan(offset, count); }
  std::span<const float> src() const { return std::span(b).subspan(offset, count); }
  float old(std::size_t i) const { return before[offset + i]; }
  bool guard_stands() const { return a.back() == before.back(); }

  std::size_t count, offset;
  std::vector<float> a, b, before;
};

class Vectors : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(Vectors);

TEST_P(Vectors, AddAddsOnEveryTail) {
  for (std::size_t n = 0; n <= kTails; ++n) {
    Operands o(n);
    add(o.dst(), o.src());
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(o.dst()[i], o.old(i) + o.src()[i]);
    EXPECT_TRUE(o.guard_stands()) << n;
  }
}

TEST_P(Vectors, AddWeightedReadsFloatsAtAnyByteAddress) {
  for (std::size_t n = 0; n <= kTails; ++n) {
    Operands o(n);
    std::vector<std::byte> bytes(4 * n + 1);
    if (n != 0) std::memcpy(bytes.data() + 1, o.src().data(), 4 * n);
    add_weighted(std::span(bytes).subspan(1), 0.3F, o.dst());
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(o.dst()[i], o.old(i) + o.src()[i] * 0.3F);
    EXPECT_TRUE(o.guard_stands()) << n;
  }
}

TEST_P(Vectors, ScaleMultipliesOnEveryTail) {
  for (std::size_t n = 0; n <= kTails; ++n) {
    Operands o(n);
    scale(o.dst(), -1.7F);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(o.dst()[i], o.old(i) * -1.7F);
    EXPECT_TRUE(o.guard_stands()) << n;
  }
}

TEST_P(Vectors, SumOfSquaresIsCloseToDoubleAndBitEqualToTheFirstTargets) {
  for (std::size_t n = 0; n <= kTails; ++n) {
    const Operands o(n);
    double expected = 0.0;
    for (const float v : o.src()) expected += double(v) * double(v);
    EXPECT_NEAR(sum_squares(o.src()), expected, 1e-6 * expected) << n;
  }
  const auto values = test::gradient(123'457, 5);
  double expected = 0.0;
  for (const float v : values) expected += double(v) * double(v);
  const double here = sum_squares(values);
  EXPECT_NEAR(here, expected, 1e-5 * expected);
  static const double first = here;
  EXPECT_EQ(here, first);
}

TEST_P(Vectors, FirstOutOfRangeFindsTheFirstAtEveryPlace) {
  EXPECT_EQ(first_out_of_range({}, kLimit), kAllInRange);
  for (std::size_t n = 1; n <= kTails; ++n) {
    auto values = test::gradient(n, n);
    ASSERT_EQ(first_out_of_range(values, kLimit), kAllInRange);
    for (const float bad : kBad) {
      for (std::size_t at = 0; at < n; ++at) {
        auto poisoned = values;
        poisoned[at] = bad;
        poisoned[n - 1] = bad;
        ASSERT_EQ(first_out_of_range(poisoned, kLimit), at) << "n=" << n;
      }
    }
  }
}

TEST_P(Vectors, ScaleIntoTellsWhetherAllIsFinite) {
  for (std::size_t n = 0; n <= kTails; ++n) {
    Operands o(n);
    ASSERT_TRUE(scale_into(o.src(), 0.25F, o.dst())) << "n=" << n;
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(o.dst()[i], o.src()[i] * 0.25F) << "n=" << n;
    EXPECT_TRUE(o.guard_stands()) << n;
    for (std::size_t at = 0; at < n; ++at) {
      for (const float bad :
           {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
            std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> values(n, -3.0F);
        values[at] = bad;
        ASSERT_FALSE(scale_into(values, 0.25F, values)) << "n=" << n << ", element " << at;
      }
    }
  }
}

TEST_P(Vectors, TakeSignsLeavesZerosOfBothSignsZero) {
  for (std::size_t n = 0; n <= kTails; ++n) {
    Operands o(n);
    if (n > 2) {
      o.dst()[n / 2] = -0.0F;
      o.dst()[n - 1] = 0.0F;
    }
    const std::vector<float> values(o.dst().begin(), o.dst().end());
    take_signs(o.dst());
    for (std::size_t i = 0; i < n; ++i) {
      const float wanted = values[i] == 0.0F ? 0.0F : std::copysign(1.0F, values[i]);
      ASSERT_EQ(o.dst()[i], wanted) << "n=" << n;
    }
    EXPECT_TRUE(o.guard_stands()) << n;
  }
}

}  // namespace
}  // namespace gradpress::kernels
