// Selection by size: one pass that adds, measures and gathers what passes a threshold, and the
// small work on what was gathered. Nothing here allocates.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/feedback.h"

namespace gradpress::kernels {

/// How an element becomes the key that selection compares: bits of a float that is zero or positive
/// for every element worth taking, so that keys order as unsigned integers do.
struct KeyMap {
  std::uint32_t mask = 0x7FFFFFFFU;
  std::uint32_t flip = 0;

  constexpr std::uint32_t operator()(float value) const {
    return (std::bit_cast<std::uint32_t>(value) & mask) ^ flip;
  }
};
inline constexpr KeyMap kByMagnitude{};
/// The value itself and its negative: keys of the other sign have bit 31 set and pass no threshold.
inline constexpr KeyMap kByValue{.mask = 0xFFFFFFFFU, .flip = 0};
inline constexpr KeyMap kByNegative{.mask = 0xFFFFFFFFU, .flip = 0x80000000U};

/// The most elements one scan call takes: a block stays in the first-level cache while what passed
/// is gathered from it, and its float sums stay exact enough to be added in double.
inline constexpr std::size_t kScanBlock = 4096;
/// Room that a scan may scribble on behind the last index it gathers.
inline constexpr std::size_t kScanSlack = 4;

struct ScanArgs {
  KeyMap key = {};
  std::uint32_t threshold = 0;    ///< key bits; at most those of infinity
  std::uint32_t first_index = 0;  ///< what the first element is called
  float limit = 0.0F;             ///< elements of g of this magnitude and above count as zero
};

/// Summed up over scan calls.
struct ScanTotals {
  double sum = 0.0;      ///< Σ of the keys as floats: Σ|x|, Σx or Σ−x
  float largest = 0.0F;  ///< the largest key as a float, at least 0
  bool in_range = true;  ///< no element of g was NaN or of magnitude `limit` and above
};

/// In ONE pass: x ← g + x, totals of the new x, and (index, value) of each element whose key
/// reaches the threshold, in ascending order. Returns how many those are.
///
/// Requires: as many in x as in g, at most kScanBlock; index.size() >= g.size() + kScanSlack;
/// value.size() >= g.size(); first_index + g.size() <= 2^32.
std::size_t scan_add(std::span<const float> g, const Renewal& x, const ScanArgs& args,
                     std::span<std::uint32_t> index, std::span<float> value, ScanTotals& totals);

/// The same of g alone.
std::size_t scan(std::span<const float> g, const ScanArgs& args, std::span<std::uint32_t> index,
                 std::span<float> value, ScanTotals& totals);

/// The k-th largest of `keys`, and how many equal to it are among the first k.
struct Rank {
  std::uint32_t key = 0;
  std::size_t ties = 0;
};
/// Requires: 0 < k <= values.size(), no key with bit 31 set. Cost: three histogram passes.
Rank kth_largest(std::span<const float> values, KeyMap key, std::size_t k);

/// How many keys are `least` or above.
std::size_t count_from(std::span<const float> values, KeyMap key, std::uint32_t least);

/// Moves the entries with a key above rank.key, and the first rank.ties with that key, to the
/// front in their order. Returns how many those are. Requires: equal sizes.
std::size_t keep_ranked(std::span<std::uint32_t> index, std::span<float> value, KeyMap key,
                        Rank rank);

}  // namespace gradpress::kernels
