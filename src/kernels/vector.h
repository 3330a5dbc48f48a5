// Elementary passes over float spans. All: any alignment, any length, no allocation; deterministic
// on every target.
#pragma once

#include <cstddef>
#include <span>

namespace gradpress::kernels {

/// dst += src. Requires: equal sizes.
void add(std::span<float> dst, std::span<const float> src);
/// dst += weight · (the floats in `bytes`, at any alignment). Requires: bytes.size() == 4 ·
/// dst.size().
void add_weighted(std::span<const std::byte> bytes, float weight, std::span<float> dst);
/// values *= factor.
void scale(std::span<float> values, float factor);
/// Σ v², float sums of 4096 elements added in double.
double sum_squares(std::span<const float> values);

inline constexpr std::size_t kAllInRange = static_cast<std::size_t>(-1);
/// The first index whose element is NaN or has a magnitude of `limit` and above; kAllInRange if
/// there is none.
std::size_t first_out_of_range(std::span<const float> values, float limit);

/// to[i] ← factor · from[i]. Returns whether all results are finite. Requires: equal sizes; `to` is
/// `from`'s own memory or does not overlap it.
bool scale_into(std::span<const float> from, float factor, std::span<float> to);

/// What was written past the caches (Renewal::past_caches) is there for other threads afterwards.
void flush_stores();

/// values = +1 where the value is positive, −1 where it is negative, 0 elsewhere.
void take_signs(std::span<float> values);

}  // namespace gradpress::kernels
