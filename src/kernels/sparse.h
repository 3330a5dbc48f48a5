// Few elements out of many: drawn by strata, checked, cleared and added where their indices say.
#pragma once

#include <hwy/cache_control.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/feedback.h"
#include "kernels/random.h"

namespace gradpress::kernels {

/// One index out of each of k strata of n elements, ascending, as docs/wire_format.md defines them
/// for randomk. Stratum j covers ⌊j·n/k⌋ up to ⌊(j+1)·n/k⌋; no division per stratum.
class Strata {
 public:
  /// Requires: 0 < k <= n < 2^32.
  constexpr Strata(std::uint64_t n, std::uint64_t k, RandomKey key)
      : key_(key), count_(k), step_(n / k), rest_(n % k) {}

  /// The next stratum's index. Requires: called at most k times.
  constexpr std::uint32_t next() {
    std::uint64_t width = step_;
    carry_ += rest_;
    if (carry_ >= count_) {
      carry_ -= count_;
      ++width;
    }
    const std::uint64_t word = random_word(key_, number_++);
    const std::uint64_t index = begin_ + ((word * width) >> 32);
    begin_ += width;
    return static_cast<std::uint32_t>(index);
  }

 private:
  RandomKey key_;
  std::uint64_t count_, step_, rest_;
  std::uint64_t carry_ = 0;
  std::uint64_t begin_ = 0;
  std::uint32_t number_ = 0;
};

/// x ← g + x, elements of g that are NaN or of magnitude `limit` and above counting as zero.
/// Returns whether there were none. Requires: equal sizes.
bool add_in_range(std::span<const float> g, const Renewal& x, float limit);

/// Whether `indices` (u32 at any alignment) ascend strictly and stay below n.
bool indices_valid(std::span<const std::byte> indices, std::uint64_t n);
/// Whether `values` (f32 at any alignment) are all finite.
bool values_finite(std::span<const std::byte> values);

/// Asks for the cache line of an element that will be needed soon.
inline void prefetch(const float* element) { hwy::Prefetch(element); }

/// The next three: requires valid indices below the span's size.
/// dst[index] += weight · value, pair by pair.
void scatter_add(std::span<const std::byte> indices, std::span<const std::byte> values,
                 float weight, std::span<float> dst);
/// dst[index] += value, the same for every index.
void scatter_add(std::span<const std::byte> indices, float value, std::span<float> dst);
/// values[index] ← 0.
void scatter_zero(std::span<const std::byte> indices, std::span<float> values);

}  // namespace gradpress::kernels
