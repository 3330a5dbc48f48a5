#include "kernels/lowrank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/panels.h"
#include "support/gradient.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

constexpr float kLimit = 1e17F;

/// Random factors of a size, in both layouts.
struct Case {
  MatrixSize size;
  std::size_t rank;
  std::vector<float> left, right, panels, floats;
  std::vector<double> doubles;

  Case(MatrixSize matrix, std::size_t ranks, std::uint64_t seed)
      : size(matrix),
        rank(ranks),
        left(test::gradient(matrix.rows * ranks, seed + 1)),
        right(test::gradient(matrix.cols * ranks, seed + 2)),
        panels(panel_floats(matrix.cols, ranks)),
        floats(project_scratch_floats(ranks)),
        doubles(project_scratch_doubles(matrix, ranks)) {
    pack_panels(right, size.cols, rank, panels);
  }
  ThinProduct product(float scale) const {
    return {.left = left.data(), .right_panels = panels.data(), .rank = rank, .scale = scale};
  }
  ProjectScratch scratch() { return {.floats = floats, .doubles = doubles}; }

  /// What subtract_product promises, element by element.
  float minus_product(float x, std::size_t row, std::size_t col, float scale) const {
    for (std::size_t k = 0; k < rank; ++k) {
      const float a = left[k * size.rows + row] * scale;
      const float term = a * right[k * size.cols + col];
      x -= term;
    }
    return x;
  }
};

/// X · right or Xᵀ · left in double, with Σ|x·f| beside it for the tolerance.
struct Projected {
  std::vector<double> value, magnitude;
};
Projected reference(const std::vector<float>& x, const Case& c, bool rows) {
  const std::size_t length = rows ? c.size.rows : c.size.cols;
  Projected out{std::vector<double>(length * c.rank), std::vector<double>(length * c.rank)};
  for (std::size_t i = 0; i < c.size.rows; ++i) {
    for (std::size_t j = 0; j < c.size.cols; ++j) {
      for (std::size_t k = 0; k < c.rank; ++k) {
        const double f = rows ? c.right[k * c.size.cols + j] : c.left[k * c.size.rows + i];
        const std::size_t at = k * length + (rows ? i : j);
        out.value[at] += double(x[i * c.size.cols + j]) * f;
        out.magnitude[at] += std::fabs(double(x[i * c.size.cols + j]) * f);
      }
    }
  }
  return out;
}

void expect_near(const std::vector<float>& got, const Projected& want, const std::string& where) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want.value[i], 4e-6 * want.magnitude[i] + 1e-30) << where << " at " << i;
  }
}

class LowRank : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(LowRank);

TEST_P(LowRank, PanelsRoundTripAndPadWithZeros) {
  for (std::size_t length = 1; length <= 67; ++length) {
    for (std::size_t rank = 1; rank <= 9; ++rank) {
      const auto factor = test::gradient(length * rank, length);
      std::vector<float> panels(panel_floats(length, rank), 5.0F);
      pack_panels(factor, length, rank, panels);
      std::vector<float> back(factor.size());
      unpack_panels(panels, length, rank, back);
      ASSERT_EQ(back, factor) << length << " x " << rank;
      EXPECT_EQ(std::ranges::count(panels, 5.0F), 0) << length << " x " << rank;
    }
  }
}

TEST_P(LowRank, EncodePassesAgreeWithScalarOnEveryTailRankAndAlignment) {
  const float scale = 0.75F;
  for (std::size_t cols = 1; cols <= 67; ++cols) {
    const std::size_t rows = 1 + cols % 19;
    for (const std::size_t rank : {1, 2, 3, 4, 5, 8, 11}) {
      Case c({rows, cols}, rank, cols);
      const std::size_t n = rows * cols;
      // Shifted so that no load is aligned; guards behind the end must survive.
      const auto g = test::gradient(n + 1, cols + 500);
      const auto old = test::gradient(n + 2, cols + 900);
      std::vector<float> want(n);
      for (std::size_t i = 0; i < n; ++i) {
        want[i] = g[i + 1] + c.minus_product(old[i + 1], i / cols, i % cols, scale);
      }
      const std::string where =
          std::to_string(rows) + "x" + std::to_string(cols) + " rank " + std::to_string(rank);
      for (const bool by_rows : {true, false}) {
        auto x = old;
        const ProjectPass pass{.size = c.size,
                               .grad = std::span(g).subspan(1),
                               .stored = std::span(x).subspan(1, n),
                               .sent = c.product(scale),
                               .limit = kLimit};
        std::vector<float> got((by_rows ? rows : cols) * rank);
        if (by_rows) {
          EXPECT_TRUE(project_rows(pass, c.panels, rank, c.scratch(), got));
        } else {
          std::vector<float> sums(c.panels.size());
          EXPECT_TRUE(project_cols(pass, c.left, rank, c.scratch(), sums));
          unpack_panels(sums, cols, rank, got);
        }
        for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(x[i + 1], want[i]) << where << " at " << i;
        EXPECT_EQ(x.front(), old.front()) << where;
        EXPECT_EQ(x.back(), old.back()) << where;
        expect_near(got, reference(want, c, by_rows), where);
      }
    }
  }
}

TEST_P(LowRank, PlainPassesProjectTheGradientItself) {
  for (const MatrixSize size : {MatrixSize{300, 7}, MatrixSize{5, 1031}, MatrixSize{33, 67}}) {
    Case c(size, 3, 17);
    const auto g = test::gradient(size.elements(), 18);
    const ProjectPass pass{.size = size, .grad = g, .stored = {}, .sent = {}, .limit = kLimit};
    std::vector<float> left(size.rows * 3);
    EXPECT_TRUE(project_rows(pass, c.panels, 3, c.scratch(), left));
    expect_near(left, reference(g, c, true), "rows");
    std::vector<float> sums(c.panels.size());
    EXPECT_TRUE(project_cols(pass, c.left, 3, c.scratch(), sums));
    std::vector<float> right(size.cols * 3);
    unpack_panels(sums, size.cols, 3, right);
    expect_near(right, reference(g, c, false), "cols");
  }
}

TEST_P(LowRank, SubtractProductTakesAnyStretchOfTheMatrix) {
  for (const MatrixSize size : {MatrixSize{6, 5}, MatrixSize{4, 37}, MatrixSize{3, 300}}) {
    for (const std::size_t rank : {1, 3, 4, 6}) {
      const Case c(size, rank, 23);
      const std::size_t n = size.elements();
      const auto x = test::gradient(n, 24);
      for (std::size_t begin = 0; begin < n; begin += 1 + n / 41) {
        for (std::size_t count = 0; begin + count <= n; count += 1 + n / 29) {
          std::vector<float> values(x.begin() + long(begin), x.begin() + long(begin + count));
          values.push_back(9.0F);
          subtract_product(c.product(-1.5F), size, begin, std::span(values).first(count));
          for (std::size_t i = 0; i < count; ++i) {
            const std::size_t at = begin + i;
            ASSERT_EQ(values[i], c.minus_product(x[at], at / size.cols, at % size.cols, -1.5F))
                << size.rows << "x" << size.cols << " begin " << begin << " at " << i;
          }
          ASSERT_EQ(values.back(), 9.0F);
        }
      }
    }
  }
}

TEST_P(LowRank, ResultsAreBitEqualToTheFirstTargets) {
  // More rows and columns than are summed in float at once, and no round numbers.
  for (const MatrixSize size : {MatrixSize{1031, 517}, MatrixSize{37, 5003}}) {
    Case c(size, 5, 31);
    const auto g = test::gradient(size.elements(), 32);
    std::vector<std::vector<float>> here;
    for (const bool by_rows : {true, false}) {
      auto x = test::gradient(size.elements(), 33);
      const ProjectPass pass{
          .size = size, .grad = g, .stored = x, .sent = c.product(1.0F), .limit = kLimit};
      std::vector<float> got(by_rows ? size.rows * 5 : c.panels.size());
      EXPECT_TRUE(by_rows ? project_rows(pass, c.panels, 5, c.scratch(), got)
                          : project_cols(pass, c.left, 5, c.scratch(), got));
      here.push_back(got);
      here.push_back(x);
    }
    static std::vector<std::pair<std::size_t, std::vector<std::vector<float>>>> first;
    const auto found =
        std::ranges::find_if(first, [&](const auto& entry) { return entry.first == size.rows; });
    if (found == first.end()) {
      first.emplace_back(size.rows, here);
    } else {
      EXPECT_EQ(here, found->second);
    }
  }
}

TEST_P(LowRank, LongSumsStayAccurate) {
  for (const MatrixSize size : {MatrixSize{1, 200'000}, MatrixSize{200'000, 1}}) {
    Case c(size, 1, 41);
    // All of one sign: nothing cancels, and a plain float sum would drift by 1e-4 and more.
    std::ranges::fill(c.left, 0.1F);
    std::ranges::fill(c.right, 0.1F);
    pack_panels(c.right, size.cols, 1, c.panels);
    const std::vector<float> g(size.elements(), 0.3F);
    const ProjectPass pass{.size = size, .grad = g, .stored = {}, .sent = {}, .limit = kLimit};
    const double want = 200'000 * double(0.3F) * double(0.1F);
    if (size.rows == 1) {
      std::vector<float> left(1);
      EXPECT_TRUE(project_rows(pass, c.panels, 1, c.scratch(), left));
      EXPECT_NEAR(left[0], want, 1e-5 * want);
    } else {
      std::vector<float> sums(c.panels.size());
      EXPECT_TRUE(project_cols(pass, c.left, 1, c.scratch(), sums));
      EXPECT_NEAR(sums[0], want, 1e-5 * want);
    }
  }
}

TEST_P(LowRank, ElementsOutOfRangeAreReportedAndCountAsZero) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), kLimit, -2 * kLimit}) {
    for (const std::size_t at : {0, 36, 37, 110}) {
      const MatrixSize size{3, 37};
      Case c(size, 2, 51);
      auto g = test::gradient(size.elements(), 52);
      g[at] = bad;
      for (const bool feedback : {true, false}) {
        std::vector<float> x(feedback ? g.size() : 0, 0.5F);
        const ProjectPass pass{.size = size, .grad = g, .stored = x, .sent = {}, .limit = kLimit};
        std::vector<float> left(3 * 2);
        EXPECT_FALSE(project_rows(pass, c.panels, 2, c.scratch(), left));
        EXPECT_TRUE(std::ranges::all_of(left, [](float v) { return std::isfinite(v); }));
        if (feedback) {
          EXPECT_EQ(x[at], 0.5F);
        }
        std::vector<float> sums(c.panels.size());
        EXPECT_FALSE(project_cols(pass, c.left, 2, c.scratch(), sums));
        EXPECT_TRUE(std::ranges::all_of(sums, [](float v) { return std::isfinite(v); }));
      }
    }
  }
}

}  // namespace
}  // namespace gradpress::kernels
