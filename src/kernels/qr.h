// Orthonormal bases for the low-rank codecs.
#pragma once

#include <cstddef>
#include <span>

namespace gradpress::kernels {

/// The widest factor orthonormalise takes.
inline constexpr std::size_t kMaxFactorColumns = 1024;

/// Replaces the factor (`length` × `columns`, column after column) by the orthonormal factor of its
/// reduced QR decomposition, by Householder reflections. Zero, rank-deficient and badly scaled
/// columns are as good as any: the result is always finite and orthonormal to rounding, and equal
/// bit by bit on every target.
///
/// Requires: finite elements; factor.size() == length · columns; columns <= length and columns <=
///           kMaxFactorColumns.
/// Cost:     4 · length · columns² operations, in place.
void orthonormalise(std::span<float> factor, std::size_t length, std::size_t columns);

/// Multiplies by the power of two that takes the largest magnitude to 1 to 2; zeros stay. Exact
/// but for elements that are denormal before or after. Requires: finite values.
void scale_to_one(std::span<float> values);

}  // namespace gradpress::kernels
