// Passes of the low-rank codecs over a row-major matrix: a product of thin factors taken off or
// added on, and the matrix projected on a thin factor in the same pass.
//
// A *left* factor has a row per row of the matrix and is stored column after column. A *right*
// factor has a row per column of the matrix and is stored in panels (panels.h).
// All: bit-equal on every target, any alignment of the matrices, no allocation.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/feedback.h"

namespace gradpress::kernels {

/// The most rows that a pass forms at once; sizes its scratch.
inline constexpr std::size_t kMostTileRows = 16;

struct MatrixSize {
  std::size_t rows = 0;
  std::size_t cols = 0;

  std::size_t elements() const { return rows * cols; }
};

/// scale · left · rightᵀ, of `rank` columns each; rank 0 is no product.
struct ThinProduct {
  const float* left = nullptr;          ///< rows × rank, column after column
  const float* right_panels = nullptr;  ///< cols × rank in panels
  std::size_t rank = 0;
  float scale = 1.0F;
};

/// values −= the product, where `values` are the matrix's elements from `begin` on, row after row.
/// Cost: one pass. Requires: begin + values.size() <= size.elements().
void subtract_product(const ThinProduct& product, MatrixSize size, std::size_t begin,
                      std::span<float> values);

/// What a projecting pass reads and writes. X is what it projects:
/// with `stored`, stored ← X = grad + (stored − sent); without, X = grad.
/// Elements of grad that are NaN or of magnitude `limit` and above count as zero.
struct ProjectPass {
  MatrixSize size;
  std::span<const float> grad;
  Renewal stored;    ///< as many as grad, or empty
  ThinProduct sent;  ///< used with stored only
  float limit = 0.0F;
};

/// Room that project_rows and project_cols work in.
struct ProjectScratch {
  std::span<float> floats;    ///< project_scratch_floats(rank)
  std::span<double> doubles;  ///< project_scratch_doubles(size, rank)
};
std::size_t project_scratch_floats(std::size_t rank);
std::size_t project_scratch_doubles(MatrixSize size, std::size_t rank);

/// left ← X · right, column after column. Sums of 2048 products in float, those in double.
/// Returns whether every element of grad was in range.
bool project_rows(const ProjectPass& pass, std::span<const float> right_panels, std::size_t rank,
                  const ProjectScratch& scratch, std::span<float> left);

/// right_panels ← Xᵀ · left. Sums of 256 products in float, those in double.
/// Returns whether every element of grad was in range.
bool project_cols(const ProjectPass& pass, std::span<const float> left, std::size_t rank,
                  const ProjectScratch& scratch, std::span<float> right_panels);

}  // namespace gradpress::kernels
