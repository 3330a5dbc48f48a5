#include "kernels/lowrank.h"

#include <hwy/cache_control.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/lowrank.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/group-inl.h"
#include "kernels/panels.h"
#include "kernels/qr.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

// How the passes are cut. Of these only kSumCols, kSumRows and kWide shape the sums, and so the
// bits.
inline constexpr std::size_t kSumCols = 2048;  // products of a row summed in float: 256 a lane
inline constexpr std::size_t kSumRows = 256;   // products of a column summed in float
inline constexpr std::size_t kFour = 4;        // rows that project_cols takes at a time
inline constexpr std::size_t kTileCols = 256;
static_assert(kSumCols % kTileCols == 0 && kSumRows % kMostTileRows == 0);

/// Rows that are formed in cache together and then projected. Few rows make long streams, which
/// memory likes; many share a panel in the first-level cache, which pays once there are several.
constexpr std::size_t tile_rows(std::size_t rank) { return rank <= kPanel ? 4 : kMostTileRows; }

using D8 = hn::CappedTag<float, kWide>;
using V8 = hn::Vec<D8>;
inline constexpr std::size_t kLanes8 = hn::MaxLanes(D8());
inline constexpr std::size_t kParts8 = kWide / kLanes8;

/// A few rows of a tile on their way: from → (− product) (+ grad) → to, and to `tile` with a grad.
struct RowsAt {
  const float* from;
  std::size_t from_stride;
  float* to;
  std::size_t to_stride;
  const float* grad = nullptr;
  std::size_t grad_stride = 0;
  float* tile = nullptr;     // kTileCols apart
  std::size_t ahead = 0;     // from here to the same place in the next tile
  bool past_caches = false;  // `to` is aligned and written past the caches
};

/// The bounds of a gradient, and whether all elements so far kept them.
struct RangeCheck {
  V8 bound;
  V8 worst = hn::Zero(D8());  // lanes turn to non-zero where an element was out of range

  explicit RangeCheck(float limit) : bound(hn::Set(D8(), limit)) {}
  HWY_INLINE V8 take(V8 raw) {
    const auto fine = hn::Lt(hn::Abs(raw), bound);
    worst = hn::Or(worst, hn::IfThenZeroElse(fine, hn::Set(D8(), -1.0F)));
    return hn::IfThenElseZero(fine, raw);
  }
  HWY_INLINE bool in_range() const { return hn::AllTrue(D8(), hn::Eq(worst, hn::Zero(D8()))); }
};

/// kRows rows, `groups` groups of 8 columns, kRanks ranks of one panel, rank after rank.
template <std::size_t kRows, std::size_t kRanks, bool kGrad>
HWY_INLINE void correct_groups(const RowsAt& at, const float* panel, const float* left,
                               std::size_t left_stride, std::size_t groups, RangeCheck& check) {
  const D8 d;
  V8 a[kRows][kRanks + 1];
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t k = 0; k < kRanks; ++k) a[row][k] = hn::Set(d, left[row * left_stride + k]);
  }
  for (std::size_t group = 0; group < groups; ++group) {
    for (std::size_t p = 0; p < kParts8; ++p) {
      const std::size_t j = group * kWide + p * kLanes8;
      V8 b[kRanks + 1];
      for (std::size_t k = 0; k < kRanks; ++k) {
        b[k] = hn::LoadU(d, panel + (group * kRanks + k) * kWide + p * kLanes8);
      }
      for (std::size_t row = 0; row < kRows; ++row) {
        if (kGrad && p == 0 && group % 2 == 0) {
          hwy::Prefetch(at.grad + row * at.grad_stride + j + at.ahead);
          hwy::Prefetch(at.from + row * at.from_stride + j + at.ahead);
          if (!at.past_caches) hwy::Prefetch(at.to + row * at.to_stride + j + at.ahead);
        }
        V8 v = hn::LoadU(d, at.from + row * at.from_stride + j);
        for (std::size_t k = 0; k < kRanks; ++k) v = hn::Sub(v, hn::Mul(a[row][k], b[k]));
        if constexpr (kGrad) {
          v = hn::Add(check.take(hn::LoadU(d, at.grad + row * at.grad_stride + j)), v);
          hn::StoreU(v, d, at.tile + row * kTileCols + j);
        }
        if (at.past_caches) {
          hn::Stream(v, d, at.to + row * at.to_stride + j);
        } else {
          hn::StoreU(v, d, at.to + row * at.to_stride + j);
        }
      }
    }
  }
}

template <std::size_t kRows, bool kGrad>
HWY_INLINE void correct_ranks(std::size_t ranks, const RowsAt& at, const float* panel,
                              const float* left, std::size_t left_stride, std::size_t groups,
                              RangeCheck& check) {
  switch (ranks) {
    case 0:
      return correct_groups<kRows, 0, kGrad>(at, panel, left, left_stride, groups, check);
    case 1:
      return correct_groups<kRows, 1, kGrad>(at, panel, left, left_stride, groups, check);
    case 2:
      return correct_groups<kRows, 2, kGrad>(at, panel, left, left_stride, groups, check);
    case 3:
      return correct_groups<kRows, 3, kGrad>(at, panel, left, left_stride, groups, check);
    default:
      return correct_groups<kRows, 4, kGrad>(at, panel, left, left_stride, groups, check);
  }
}

/// The same for `cols` columns of which the last group may be short: that one goes through padding,
/// since its rows end there.
template <std::size_t kRows, bool kGrad>
HWY_INLINE void correct_cols(std::size_t ranks, const RowsAt& at, const float* panel,
                             const float* left, std::size_t left_stride, std::size_t cols,
                             RangeCheck& check) {
  const std::size_t whole = cols / kWide;
  correct_ranks<kRows, kGrad>(ranks, at, panel, left, left_stride, whole, check);
  const std::size_t rest = cols % kWide;
  if (rest == 0) return;
  const std::size_t done = whole * kWide;
  alignas(64) float x[kRows * kWide] = {};
  alignas(64) float g[kRows * kWide] = {};
  for (std::size_t row = 0; row < kRows; ++row) {
    std::memcpy(x + row * kWide, at.from + row * at.from_stride + done, rest * sizeof(float));
    if constexpr (kGrad) {
      std::memcpy(g + row * kWide, at.grad + row * at.grad_stride + done, rest * sizeof(float));
    }
  }
  const RowsAt padded{.from = x,
                      .from_stride = kWide,
                      .to = x,
                      .to_stride = kWide,
                      .grad = g,
                      .grad_stride = kWide,
                      .tile = kGrad ? at.tile + done : nullptr};
  correct_ranks<kRows, kGrad>(ranks, padded, panel + whole * ranks * kWide, left, left_stride, 1,
                              check);
  for (std::size_t row = 0; row < kRows; ++row) {
    std::memcpy(at.to + row * at.to_stride + done, x + row * kWide, rest * sizeof(float));
  }
}

/// One panel's ranks for `rows` rows, two at a time.
template <bool kGrad>
HWY_INLINE void correct_panel(std::size_t ranks, RowsAt at, const float* panel, const float* left,
                              std::size_t left_stride, std::size_t rows, std::size_t cols,
                              RangeCheck& check) {
  std::size_t row = 0;
  for (; row + 2 <= rows; row += 2) {
    correct_cols<2, kGrad>(ranks, at, panel, left + row * left_stride, left_stride, cols, check);
    at.from += 2 * at.from_stride;
    at.to += 2 * at.to_stride;
    if constexpr (kGrad) {
      at.grad += 2 * at.grad_stride;
      at.tile += 2 * kTileCols;
    }
  }
  if (row < rows) {
    correct_cols<1, kGrad>(ranks, at, panel, left + row * left_stride, left_stride, cols, check);
  }
}

/// All ranks of the product for `rows` rows of a tile, panel after panel: only the first reads from
/// memory and only the last writes there; those between work in `tile`. `left` has the rows' scaled
/// factors, row after row.
template <bool kGrad>
HWY_INLINE void correct_tile(RowsAt at, const float* panels, const PanelShape& shape,
                             const float* left, std::size_t first_group, std::size_t rows,
                             std::size_t cols, RangeCheck& check) {
  const std::size_t count = shape.panels();
  for (std::size_t panel = 0; panel + 1 < count; ++panel) {
    const RowsAt inner{
        .from = at.from, .from_stride = at.from_stride, .to = at.tile, .to_stride = kTileCols};
    correct_panel<false>(kPanel, inner, panels + shape.at(panel, first_group),
                         left + panel * kPanel, shape.rank, rows, cols, check);
    at.from = at.tile;
    at.from_stride = kTileCols;
  }
  const std::size_t last = count == 0 ? 0 : count - 1;
  const std::size_t ranks = count == 0 ? 0 : shape.width(last);
  const float* const panel = count == 0 ? nullptr : panels + shape.at(last, first_group);
  correct_panel<kGrad>(ranks, at, panel, left + last * kPanel, shape.rank, rows, cols, check);
}

/// X = grad for `rows` rows of a tile.
HWY_INLINE void copy_tile(const float* grad, std::size_t stride, std::size_t rows, std::size_t cols,
                          float* tile, RangeCheck& check) {
  const D8 d;
  for (std::size_t row = 0; row < rows; ++row) {
    const float* const from = grad + row * stride;
    float* const to = tile + row * kTileCols;
    const std::size_t whole = cols / kWide * kWide;
    for (std::size_t j = 0; j < whole; j += kLanes8) {
      hn::StoreU(check.take(hn::LoadU(d, from + j)), d, to + j);
    }
    if (whole == cols) continue;
    alignas(64) float padded[kWide] = {};
    std::memcpy(padded, from + whole, (cols - whole) * sizeof(float));
    for (std::size_t j = 0; j < kWide; j += kLanes8) {
      hn::StoreU(check.take(hn::Load(d, padded + j)), d, to + whole + j);
    }
  }
}

/// `count` rows of a left factor from row0 on, scaled, row after row; zeros up to kMostTileRows.
void gather_left(const float* left, std::size_t rows, std::size_t rank, float scale,
                 std::size_t row0, std::size_t count, float* block) {
  for (std::size_t k = 0; k < rank; ++k) {
    const float* const column = left + k * rows + row0;
    for (std::size_t row = 0; row < count; ++row) block[row * rank + k] = column[row] * scale;
  }
  std::fill(block + count * rank, block + kMostTileRows * rank, 0.0F);
}

/// left = X · right: keeps eight running sums for each row of the block and rank.
struct RowProjection {
  const float* panels;
  PanelShape shape;
  std::size_t rows;
  std::size_t cols;
  float* lanes;    // kMostTileRows × rank × 8
  double* totals;  // kMostTileRows × rank
  float* left;

  HWY_INLINE void begin_block(std::size_t /*row0*/, std::size_t /*count*/) {
    std::fill(lanes, lanes + kMostTileRows * shape.rank * kWide, 0.0F);
    std::fill(totals, totals + kMostTileRows * shape.rank, 0.0);
  }

  template <std::size_t kRanks>
  HWY_INLINE void pair(const float* tile, const float* panel, std::size_t groups, float* sums) {
    const D8 d;
    const std::size_t next_row = shape.rank * kWide;
    V8 sum[2][kRanks][kParts8];
    for (std::size_t k = 0; k < kRanks; ++k) {
      for (std::size_t p = 0; p < kParts8; ++p) {
        sum[0][k][p] = hn::LoadU(d, sums + k * kWide + p * kLanes8);
        sum[1][k][p] = hn::LoadU(d, sums + next_row + k * kWide + p * kLanes8);
      }
    }
    for (std::size_t group = 0; group < groups; ++group) {
      for (std::size_t p = 0; p < kParts8; ++p) {
        const V8 x0 = hn::LoadU(d, tile + group * kWide + p * kLanes8);
        const V8 x1 = hn::LoadU(d, tile + kTileCols + group * kWide + p * kLanes8);
        for (std::size_t k = 0; k < kRanks; ++k) {
          const V8 q = hn::LoadU(d, panel + (group * kRanks + k) * kWide + p * kLanes8);
          sum[0][k][p] = hn::Add(sum[0][k][p], hn::Mul(x0, q));
          sum[1][k][p] = hn::Add(sum[1][k][p], hn::Mul(x1, q));
        }
      }
    }
    for (std::size_t k = 0; k < kRanks; ++k) {
      for (std::size_t p = 0; p < kParts8; ++p) {
        hn::StoreU(sum[0][k][p], d, sums + k * kWide + p * kLanes8);
        hn::StoreU(sum[1][k][p], d, sums + next_row + k * kWide + p * kLanes8);
      }
    }
  }

  /// Rows of the tile past `count` are zero up to a whole pair.
  HWY_INLINE void tile(const float* formed, std::size_t count, std::size_t first_group,
                       std::size_t groups) {
    for (std::size_t panel = 0; panel < shape.panels(); ++panel) {
      const float* const from = panels + shape.at(panel, first_group);
      for (std::size_t row = 0; row < count; row += 2) {
        const float* const x = formed + row * kTileCols;
        float* const sums = lanes + (row * shape.rank + panel * kPanel) * kWide;
        switch (shape.width(panel)) {
          case 1:
            pair<1>(x, from, groups, sums);
            break;
          case 2:
            pair<2>(x, from, groups, sums);
            break;
          case 3:
            pair<3>(x, from, groups, sums);
            break;
          default:
            pair<4>(x, from, groups, sums);
        }
      }
    }
  }

  HWY_INLINE void end_tile(std::size_t end, std::size_t count) {
    if (end % kSumCols != 0 && end != cols) return;
    for (std::size_t i = 0; i < count * shape.rank; ++i) {
      float* const lane = lanes + i * kWide;
      double sum[kWide];
      for (std::size_t l = 0; l < kWide; ++l) sum[l] = static_cast<double>(lane[l]);
      for (std::size_t width = kWide / 2; width > 0; width /= 2) {
        for (std::size_t l = 0; l < width; ++l) sum[l] += sum[l + width];
      }
      totals[i] += sum[0];
      std::fill(lane, lane + kWide, 0.0F);
    }
  }

  HWY_INLINE void end_block(std::size_t row0, std::size_t count) {
    for (std::size_t k = 0; k < shape.rank; ++k) {
      for (std::size_t row = 0; row < count; ++row) {
        left[k * rows + row0 + row] = static_cast<float>(totals[row * shape.rank + k]);
      }
    }
  }
};

/// right = Xᵀ · left: the panels themselves are the running sums.
struct ColProjection {
  const float* left;
  PanelShape shape;
  std::size_t rows;
  float* block;  // kMostTileRows × rank: the left factor's rows of this block
  float* panels;
  double* totals;  // as many as panels has

  HWY_INLINE void begin_block(std::size_t row0, std::size_t count) {
    gather_left(left, rows, shape.rank, 1.0F, row0, count, block);
  }

  template <std::size_t kRanks>
  HWY_INLINE void four(const float* tile, const float* factors, std::size_t groups,
                       std::size_t width, float* panel) {
    const D8 d;
    V8 a[kFour][kRanks];
    for (std::size_t row = 0; row < kFour; ++row) {
      for (std::size_t k = 0; k < kRanks; ++k) {
        a[row][k] = hn::Set(d, factors[row * shape.rank + k]);
      }
    }
    for (std::size_t group = 0; group < groups; ++group) {
      for (std::size_t p = 0; p < kParts8; ++p) {
        float* const at = panel + group * width * kWide + p * kLanes8;
        V8 sum[kRanks];
        for (std::size_t k = 0; k < kRanks; ++k) sum[k] = hn::LoadU(d, at + k * kWide);
        for (std::size_t row = 0; row < kFour; ++row) {
          const V8 x = hn::LoadU(d, tile + row * kTileCols + group * kWide + p * kLanes8);
          for (std::size_t k = 0; k < kRanks; ++k) {
            sum[k] = hn::Add(sum[k], hn::Mul(x, a[row][k]));
          }
        }
        for (std::size_t k = 0; k < kRanks; ++k) hn::StoreU(sum[k], d, at + k * kWide);
      }
    }
  }

  /// Rows of the tile past `count` are zero up to a whole four.
  HWY_INLINE void tile(const float* formed, std::size_t count, std::size_t first_group,
                       std::size_t groups) {
    for (std::size_t panel = 0; panel < shape.panels(); ++panel) {
      const std::size_t width = shape.width(panel);
      float* const sums = panels + shape.at(panel, first_group);
      for (std::size_t row = 0; row < count; row += kFour) {
        const float* const x = formed + row * kTileCols;
        const float* const factors = block + row * shape.rank + panel * kPanel;
        std::size_t k = 0;
        for (; k + 2 <= width; k += 2) four<2>(x, factors + k, groups, width, sums + k * kWide);
        if (k < width) four<1>(x, factors + k, groups, width, sums + k * kWide);
      }
    }
  }

  HWY_INLINE void end_tile(std::size_t /*end*/, std::size_t /*count*/) {}

  HWY_INLINE void end_block(std::size_t row0, std::size_t count) {
    const std::size_t end = row0 + count;
    if (end % kSumRows != 0 && end != rows) return;
    const std::size_t floats = shape.groups * kWide * shape.rank;
    for (std::size_t i = 0; i < floats; ++i) {
      totals[i] += static_cast<double>(panels[i]);
      panels[i] = end == rows ? static_cast<float>(totals[i]) : 0.0F;
    }
  }
};

/// Forms X tile by tile and hands each, while it is in cache, to the projection.
template <class Projection>
HWY_INLINE bool project(const ProjectPass& pass, std::size_t rows_at_once, float* left_block,
                        Projection& projection) {
  const auto [rows, cols] = pass.size;
  const PanelShape shape(cols, pass.sent.rank);
  const bool feedback = !pass.stored.empty();
  const bool past_caches =
      pass.stored.past_caches && cols % kWide == 0 &&
      reinterpret_cast<std::uintptr_t>(pass.stored.to.data()) % (kWide * sizeof(float)) == 0;
  RangeCheck check(pass.limit);
  alignas(64) float tile[kMostTileRows * kTileCols] = {};
  for (std::size_t row0 = 0; row0 < rows; row0 += rows_at_once) {
    const std::size_t count = std::min(rows_at_once, rows - row0);
    if (feedback) {
      gather_left(pass.sent.left, rows, pass.sent.rank, pass.sent.scale, row0, count, left_block);
    }
    projection.begin_block(row0, count);
    for (std::size_t col0 = 0; col0 < cols; col0 += kTileCols) {
      const std::size_t width = std::min(kTileCols, cols - col0);
      const std::size_t offset = row0 * cols + col0;
      const float* const grad = pass.grad.data() + offset;
      if (feedback) {
        const RowsAt at{.from = pass.stored.from.data() + offset,
                        .from_stride = cols,
                        .to = pass.stored.to.data() + offset,
                        .to_stride = cols,
                        .grad = grad,
                        .grad_stride = cols,
                        .tile = tile,
                        .ahead = cols - col0 >= 2 * kTileCols ? kTileCols : 0,
                        .past_caches = past_caches};
        correct_tile<true>(at, pass.sent.right_panels, shape, left_block, col0 / kWide, count,
                           width, check);
      } else {
        copy_tile(grad, cols, count, width, tile, check);
      }
      const std::size_t padded = (count + kFour - 1) / kFour * kFour;
      std::fill(tile + count * kTileCols, tile + padded * kTileCols, 0.0F);
      projection.tile(tile, count, col0 / kWide, (width + kWide - 1) / kWide);
      projection.end_tile(col0 + width, count);
    }
    projection.end_block(row0, count);
  }
  return check.in_range();
}

bool project_rows_kernel(const ProjectPass& pass, const float* panels, std::size_t rank,
                         const ProjectScratch& scratch, float* left) {
  RowProjection projection{.panels = panels,
                           .shape = PanelShape(pass.size.cols, rank),
                           .rows = pass.size.rows,
                           .cols = pass.size.cols,
                           .lanes = scratch.floats.data() + kMostTileRows * rank,
                           .totals = scratch.doubles.data(),
                           .left = left};
  return project(pass, tile_rows(rank), scratch.floats.data(), projection);
}

bool project_cols_kernel(const ProjectPass& pass, const float* left, std::size_t rank,
                         const ProjectScratch& scratch, float* panels) {
  ColProjection projection{.left = left,
                           .shape = PanelShape(pass.size.cols, rank),
                           .rows = pass.size.rows,
                           .block = scratch.floats.data() + kMostTileRows * rank,
                           .panels = panels,
                           .totals = scratch.doubles.data()};
  const std::size_t floats = panel_floats(pass.size.cols, rank);
  std::fill(panels, panels + floats, 0.0F);
  std::fill(projection.totals, projection.totals + floats, 0.0);
  return project(pass, tile_rows(rank), scratch.floats.data(), projection);
}

/// Part of one row, columns [begin, end), which need not begin with a group.
void subtract_in_row(const ThinProduct& product, MatrixSize size, std::size_t row,
                     std::size_t begin, std::size_t end, float* values) {
  const PanelShape shape(size.cols, product.rank);
  RangeCheck unused(0.0F);
  for (std::size_t col = begin; col < end;) {
    const std::size_t group = col / kWide;
    const std::size_t skip = col % kWide;
    const std::size_t count = std::min(kWide - skip, end - col);
    alignas(64) float x[kWide] = {};
    std::memcpy(x + skip, values, count * sizeof(float));
    const RowsAt at{.from = x, .from_stride = kWide, .to = x, .to_stride = kWide};
    for (std::size_t panel = 0; panel < shape.panels(); ++panel) {
      float factors[kPanel];
      for (std::size_t k = 0; k < shape.width(panel); ++k) {
        factors[k] = product.left[(panel * kPanel + k) * size.rows + row] * product.scale;
      }
      correct_ranks<1, false>(shape.width(panel), at, product.right_panels + shape.at(panel, group),
                              factors, 0, 1, unused);
    }
    std::memcpy(values, x + skip, count * sizeof(float));
    values += count;
    col += count;
  }
}

/// Whole rows, tile by tile.
void subtract_in_rows(const ThinProduct& product, MatrixSize size, std::size_t row0,
                      std::size_t rows, float* values) {
  const PanelShape shape(size.cols, product.rank);
  RangeCheck unused(0.0F);
  alignas(64) float tile[kMostTileRows * kTileCols];
  alignas(64) float left[kMostTileRows * kMaxFactorColumns];
  const std::size_t at_once = tile_rows(product.rank);
  for (std::size_t row = 0; row < rows; row += at_once) {
    const std::size_t count = std::min(at_once, rows - row);
    gather_left(product.left, size.rows, product.rank, product.scale, row0 + row, count, left);
    for (std::size_t col0 = 0; col0 < size.cols; col0 += kTileCols) {
      const std::size_t width = std::min(kTileCols, size.cols - col0);
      float* const x = values + row * size.cols + col0;
      const RowsAt at{
          .from = x, .from_stride = size.cols, .to = x, .to_stride = size.cols, .tile = tile};
      correct_tile<false>(at, product.right_panels, shape, left, col0 / kWide, count, width,
                          unused);
    }
  }
}

void subtract_product_kernel(const ThinProduct& product, MatrixSize size, std::size_t begin,
                             float* values, std::size_t n) {
  const std::size_t end = begin + n;
  std::size_t at = begin;
  if (at % size.cols != 0) {
    const std::size_t stop = std::min(end, (at / size.cols + 1) * size.cols);
    const std::size_t row = at / size.cols;
    subtract_in_row(product, size, row, at - row * size.cols, stop - row * size.cols, values);
    at = stop;
  }
  const std::size_t rows = (end - at) / size.cols;
  subtract_in_rows(product, size, at / size.cols, rows, values + (at - begin));
  at += rows * size.cols;
  if (at < end) {
    subtract_in_row(product, size, at / size.cols, 0, end - at, values + (at - begin));
  }
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(project_rows_kernel);
HWY_EXPORT(project_cols_kernel);
HWY_EXPORT(subtract_product_kernel);

void subtract_product(const ThinProduct& product, MatrixSize size, std::size_t begin,
                      std::span<float> values) {
  if (values.empty() || product.rank == 0) return;
  HWY_DYNAMIC_DISPATCH(subtract_product_kernel)
  (product, size, begin, values.data(), values.size());
}

std::size_t project_scratch_floats(std::size_t rank) { return kMostTileRows * rank * (1 + kWide); }

std::size_t project_scratch_doubles(MatrixSize size, std::size_t rank) {
  return std::max(kMostTileRows * rank, panel_floats(size.cols, rank));
}

bool project_rows(const ProjectPass& pass, std::span<const float> right_panels, std::size_t rank,
                  const ProjectScratch& scratch, std::span<float> left) {
  return HWY_DYNAMIC_DISPATCH(project_rows_kernel)(pass, right_panels.data(), rank, scratch,
                                                   left.data());
}

bool project_cols(const ProjectPass& pass, std::span<const float> left, std::size_t rank,
                  const ProjectScratch& scratch, std::span<float> right_panels) {
  return HWY_DYNAMIC_DISPATCH(project_cols_kernel)(pass, left.data(), rank, scratch,
                                                   right_panels.data());
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
