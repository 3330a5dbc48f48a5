#include "kernels/qr.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/gradient.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

/// The largest |QᵀQ − I|; infinite if an element is not finite.
double defect(const std::vector<float>& q, std::size_t length, std::size_t columns) {
  double worst = 0.0;
  for (std::size_t a = 0; a < columns; ++a) {
    for (std::size_t b = a; b < columns; ++b) {
      double dot = a == b ? -1.0 : 0.0;
      for (std::size_t i = 0; i < length; ++i) {
        dot += double(q[a * length + i]) * double(q[b * length + i]);
      }
      if (!std::isfinite(dot)) return std::numeric_limits<double>::infinity();
      worst = std::max(worst, std::fabs(dot));
    }
  }
  return worst;
}

/// How much of `column` (scaled to a length of 1) is outside the span of q.
double outside(const float* column, const std::vector<float>& q, std::size_t length,
               std::size_t columns) {
  std::vector<double> rest(column, column + length);
  double norm = 0.0;
  for (const double v : rest) norm += v * v;
  for (std::size_t k = 0; k < columns; ++k) {
    double dot = 0.0;
    for (std::size_t i = 0; i < length; ++i) dot += double(column[i]) * double(q[k * length + i]);
    for (std::size_t i = 0; i < length; ++i) rest[i] -= dot * double(q[k * length + i]);
  }
  double left = 0.0;
  for (const double v : rest) left += v * v;
  return norm == 0.0 ? 0.0 : std::sqrt(left / norm);
}

class Qr : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(Qr);

TEST_P(Qr, ColumnsAreOrthonormalAndSpanTheInputAtEveryLength) {
  for (std::size_t length = 1; length <= 67; ++length) {
    for (const std::size_t columns : {1, 2, 3, 4, 5, 8, 13}) {
      if (columns > length) continue;
      const auto a = test::gradient(length * columns, length * 100 + columns);
      // Not aligned, and with a guard behind the end.
      std::vector<float> q = {7.0F};
      q.insert(q.end(), a.begin(), a.end());
      q.push_back(7.0F);
      orthonormalise(std::span(q).subspan(1, a.size()), length, columns);
      EXPECT_EQ(q.front(), 7.0F);
      EXPECT_EQ(q.back(), 7.0F);
      const std::vector<float> result(q.begin() + 1, q.end() - 1);
      ASSERT_LT(defect(result, length, columns), 2e-6) << length << " x " << columns;
      for (std::size_t k = 0; k < columns; ++k) {
        ASSERT_LT(outside(&a[k * length], result, length, columns), 2e-5)
            << length << " x " << columns << " column " << k;
      }
    }
  }
}

TEST_P(Qr, ZeroInputGivesTheFirstAxes) {
  std::vector<float> q(40 * 3, 0.0F);
  orthonormalise(q, 40, 3);
  for (std::size_t k = 0; k < 3; ++k) {
    for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(q[k * 40 + i], i == k ? 1.0F : 0.0F);
  }
}

TEST_P(Qr, RankDeficientInputStillGivesOrthonormalColumns) {
  const std::size_t length = 97;
  for (const float noise : {0.0F, 1e-30F, 1e-20F, 1e-12F, 1e-7F}) {
    auto q = test::gradient(length * 6, 4);
    const auto other = test::gradient(length, 5);
    for (std::size_t i = 0; i < length; ++i) {
      q[length + i] = 3.0F * q[i];                           // a multiple
      q[2 * length + i] = 0.0F;                              // nothing
      q[4 * length + i] = q[i] - q[3 * length + i];          // a combination
      q[5 * length + i] = i == 0 ? 1.0F : noise * other[i];  // almost an axis
    }
    orthonormalise(q, length, 6);
    EXPECT_LT(defect(q, length, 6), 3e-6) << "noise " << noise;
  }
}

TEST_P(Qr, BadlyScaledColumnsAreAsGoodAsAny) {
  const std::size_t length = 200;
  const auto a = test::gradient(length * 5, 6);
  auto scaled = a;
  const float factors[5] = {1e-40F, 1e30F, 1.0F, 1e-30F, 1e35F};
  for (std::size_t k = 0; k < 5; ++k) {
    const float most = std::fabs(
        *std::ranges::max_element(a.begin() + long(k * length), a.begin() + long((k + 1) * length),
                                  [](float x, float y) { return std::fabs(x) < std::fabs(y); }));
    for (std::size_t i = 0; i < length; ++i) scaled[k * length + i] *= factors[k] / most;
  }
  const auto before = scaled;
  orthonormalise(scaled, length, 5);
  EXPECT_LT(defect(scaled, length, 5), 2e-6);
  for (std::size_t k = 0; k < 5; ++k) {
    EXPECT_LT(outside(&before[k * length], scaled, length, 5), 1e-4) << k;
  }
}

TEST_P(Qr, ResultIsBitEqualToTheFirstTargets) {
  auto q = test::gradient(10'007 * 9, 8);
  orthonormalise(q, 10'007, 9);
  static const std::vector<float> first = q;
  EXPECT_EQ(q, first);
}

TEST_P(Qr, ScaleToOneMultipliesByAPowerOfTwo) {
  for (const float factor : {1.0F, 1e-38F, 1e30F, 3e-45F}) {
    std::vector<float> v = {0.25F * factor, -3.0F * factor, 0.0F};
    scale_to_one(v);
    EXPECT_GE(std::fabs(v[1]), 1.0F);
    EXPECT_LT(std::fabs(v[1]), 2.0F);
    EXPECT_EQ(v[2], 0.0F);
  }
  std::vector<float> zero(5, 0.0F);
  scale_to_one(zero);
  EXPECT_EQ(zero, std::vector<float>(5, 0.0F));
}

TEST(QrLimits, TheWidestFactorStaysOrthonormal) {
  const std::size_t length = kMaxFactorColumns + 3;
  auto q = test::gradient(length * kMaxFactorColumns, 9);
  orthonormalise(q, length, kMaxFactorColumns);
  // Neighbouring and distant columns; all pairs would take longer than they prove.
  for (std::size_t a = 0; a < kMaxFactorColumns; a += 31) {
    for (const std::size_t b : {a, a / 2, kMaxFactorColumns - 1 - a}) {
      double dot = a == b ? -1.0 : 0.0;
      for (std::size_t i = 0; i < length; ++i) {
        dot += double(q[a * length + i]) * double(q[b * length + i]);
      }
      EXPECT_LT(std::fabs(dot), 2e-5) << a << ", " << b;
    }
  }
}

}  // namespace
}  // namespace gradpress::kernels
