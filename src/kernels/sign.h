// One bit per element: its sign, lowest bit first, 1 = negative (the IEEE sign bit, so −0 is
// negative).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/feedback.h"

namespace gradpress::kernels {

/// What one encode pass learned on the way.
struct SignSums {
  double positive = 0.0;        ///< Σ of the elements that are positive
  double negative = 0.0;        ///< Σ of the elements that are negative, itself negative
  std::uint64_t negatives = 0;  ///< how many sign bits are set
  bool in_range = true;         ///< no element was NaN or of magnitude `limit` and above
};

/// What was subtracted from an element for the sign it was sent with.
struct SignLevels {
  float positive = 0.0F;
  float negative = 0.0F;
};

/// In ONE pass: x ← g + (x − sent level of x), the sign bits of the new x, its sums. `x` holds the
/// last step's sum and `sent` what the payload then carried for each sign, so the residual itself
/// is never stored. Elements of g out of range count as zero, which leaves their residual whole.
///
/// Requires: as many in x as in g; bits.size() == ⌈n/8⌉ (bits past n are cleared).
SignSums encode_signs(std::span<const float> g, const Renewal& x, SignLevels sent, float limit,
                      std::span<std::byte> bits);

/// The same without a residual: the signs and sums of g.
SignSums encode_signs(std::span<const float> g, float limit, std::span<std::byte> bits);

/// x ← x − sent level of x: turns stored sums into residuals.
void subtract_levels(std::span<float> x, SignLevels sent);

/// dst += the level of each bit. Requires: bits.size() >= ⌈n/8⌉.
void add_levels(std::span<const std::byte> bits, SignLevels levels, std::span<float> dst);

}  // namespace gradpress::kernels
