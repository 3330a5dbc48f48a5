#include "kernels/select.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/select.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

static_assert(kScanBlock == kSumBlock, "a scan's float sums go to double once a block");

/// The running part of a scan: constants, and totals of the block.
template <bool kFeedback>
struct ScanPass {
  VF threshold, bound;
  VU mask, flip;
  LaneSums sums;
  VF largest = hn::Zero(DF());
  VF worst = hn::Zero(DF());  // lanes turn to all ones where an element was out of range

  HWY_INLINE explicit ScanPass(const ScanArgs& args)
      : threshold(hn::Set(DF(), std::bit_cast<float>(args.threshold))),
        bound(hn::Set(DF(), args.limit)),
        mask(hn::Set(DU(), args.key.mask)),
        flip(hn::Set(DU(), args.key.flip)) {}

  /// Sixteen elements; returns a bit for each that reaches the threshold.
  HWY_INLINE std::uint32_t group(const float* g, RenewedAt x) {
    const DF d;
    const DU du;
    std::uint32_t bits = 0;
    for (std::size_t p = 0; p < kParts; ++p) {
      const VF raw = hn::LoadU(d, g + p * kLanes);
      const MF fine = hn::Lt(hn::Abs(raw), bound);
      worst = hn::Or(worst, hn::IfThenZeroElse(fine, hn::Set(d, -1.0F)));
      VF v = hn::IfThenElseZero(fine, raw);
      if constexpr (kFeedback) {
        v = hn::Add(v, hn::LoadU(d, x.from + p * kLanes));
        store_kept(v, x.to + p * kLanes, x.past_caches);
      }
      const VF key = hn::BitCast(d, hn::Xor(hn::And(hn::BitCast(du, v), mask), flip));
      sums.add(p, key);
      largest = hn::Max(largest, key);
      bits |= mask_bits(hn::Ge(key, threshold)) << (p * kLanes);
    }
    return bits;
  }
};

/// Appends first + (position of each set bit). Four are written whatever the word holds: with few
/// bits a word, which is what thresholds are for, no branch depends on how many.
HWY_INLINE std::uint32_t* append_positions(std::uint64_t word, std::uint32_t first,
                                           std::uint32_t* to) {
  const int count = std::popcount(word);
  for (std::size_t i = 0; i < kScanSlack; ++i) {
    to[i] = first + static_cast<std::uint32_t>(std::countr_zero(word));
    word &= word - 1;
  }
  for (int i = kScanSlack; i < count; ++i) {
    to[i] = first + static_cast<std::uint32_t>(std::countr_zero(word));
    word &= word - 1;
  }
  return to + count;
}

template <bool kFeedback>
HWY_INLINE std::size_t scan_block(const float* g, RenewedAt x, std::size_t n, const ScanArgs& args,
                                  std::uint32_t* index, float* value, ScanTotals* totals) {
  constexpr std::size_t kWord = 64;
  const DF d;
  std::uint64_t words[kScanBlock / kWord];
  ScanPass<kFeedback> pass(args);
  x.past_caches = kFeedback && streams(x);
  std::size_t i = 0;
  for (; i + kWord <= n; i += kWord) {
    std::uint64_t word = 0;
    for (std::size_t at = 0; at < kWord; at += kGroup) {
      ask_ahead(g + i + at);
      if constexpr (kFeedback) ask_ahead(x.from + i + at);
      const std::uint64_t bits = pass.group(g + i + at, kFeedback ? x + (i + at) : x);
      word |= bits << at;
    }
    words[i / kWord] = word;
  }
  if (i < n) {
    std::uint64_t word = 0;
    for (std::size_t at = 0; i + at < n; at += kGroup) {
      const std::size_t rest = std::min(kGroup, n - i - at);
      const PaddedTail tail_g(g + i + at, rest);
      PaddedTail tail_x(kFeedback ? x.from + i + at : g, kFeedback ? rest : 0);
      const std::uint64_t bits =
          pass.group(tail_g.values, RenewedAt{.from = tail_x.values, .to = tail_x.values});
      if constexpr (kFeedback) std::memcpy(x.to + i + at, tail_x.values, rest * sizeof(float));
      // Padding is zero, and zero reaches a threshold of zero.
      word |= (bits & ((std::uint64_t{1} << rest) - 1)) << at;
    }
    words[i / kWord] = word;
  }
  std::uint32_t* end = index;
  for (std::size_t begin = 0; begin < n; begin += kWord) {
    end = append_positions(words[begin / kWord],
                           args.first_index + static_cast<std::uint32_t>(begin), end);
  }
  const auto count = static_cast<std::size_t>(end - index);
  if (x.past_caches) {
    // What was streamed would have to come back from memory: its summands are still cached.
    for (std::size_t j = 0; j < count; ++j) {
      const std::size_t at = index[j] - args.first_index;
      value[j] = (std::fabs(g[at]) < args.limit ? g[at] : 0.0F) + x.from[at];
    }
  } else {
    const float* const from = kFeedback ? x.to : g;
    for (std::size_t j = 0; j < count; ++j) value[j] = from[index[j] - args.first_index];
  }
  totals->sum += pass.sums.total();
  totals->largest = std::max(totals->largest, hn::GetLane(hn::MaxOfLanes(d, pass.largest)));
  totals->in_range = totals->in_range && hn::AllTrue(d, hn::Eq(pass.worst, hn::Zero(d)));
  return count;
}

std::size_t scan_add_kernel(const float* g, RenewedAt x, std::size_t n, const ScanArgs& args,
                            std::uint32_t* index, float* value, ScanTotals* totals) {
  return scan_block<true>(g, x, n, args, index, value, totals);
}

std::size_t scan_kernel(const float* g, std::size_t n, const ScanArgs& args, std::uint32_t* index,
                        float* value, ScanTotals* totals) {
  return scan_block<false>(g, RenewedAt{}, n, args, index, value, totals);
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(scan_add_kernel);
HWY_EXPORT(scan_kernel);

std::size_t scan_add(std::span<const float> g, const Renewal& x, const ScanArgs& args,
                     std::span<std::uint32_t> index, std::span<float> value, ScanTotals& totals) {
  return HWY_DYNAMIC_DISPATCH(scan_add_kernel)(g.data(), pointers(x), g.size(), args, index.data(),
                                               value.data(), &totals);
}
std::size_t scan(std::span<const float> g, const ScanArgs& args, std::span<std::uint32_t> index,
                 std::span<float> value, ScanTotals& totals) {
  return HWY_DYNAMIC_DISPATCH(scan_kernel)(g.data(), g.size(), args, index.data(), value.data(),
                                           &totals);
}

namespace {

/// Up to here the histograms' own length would cost more than the values.
constexpr std::size_t kFewValues = 512;

Rank kth_largest_of_few(std::span<const float> values, KeyMap key, std::size_t k) {
  std::array<std::uint32_t, kFewValues> buffer{};
  const auto keys = std::span(buffer).first(values.size());
  std::ranges::transform(values, keys.begin(), key);
  const auto kth = keys.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::ranges::nth_element(keys, kth, std::greater<>());
  const auto above =
      std::ranges::count_if(keys, [least = *kth](std::uint32_t other) { return other > least; });
  return {.key = *kth, .ties = k - static_cast<std::size_t>(above)};
}

}  // namespace

Rank kth_largest(std::span<const float> values, KeyMap key, std::size_t k) {
  if (values.size() <= kFewValues) return kth_largest_of_few(values, key, k);
  // 31 bits in three digits, highest first; each pass counts the keys that share the digits found.
  struct Digit {
    unsigned shift;
    unsigned bits;
  };
  constexpr std::array<Digit, 3> kDigits = {{{20, 11}, {10, 10}, {0, 10}}};
  std::array<std::uint32_t, 2048> histogram;
  std::uint32_t found = 0;
  std::size_t left = k;
  for (const Digit digit : kDigits) {
    histogram.fill(0);
    const std::uint32_t last = (1U << digit.bits) - 1;
    const unsigned known = digit.shift + digit.bits;
    for (const float value : values) {
      const std::uint32_t bits = key(value);
      if (bits >> known == found) ++histogram[(bits >> digit.shift) & last];
    }
    std::uint32_t bucket = last;
    while (histogram[bucket] < left) left -= histogram[bucket--];
    found = (found << digit.bits) | bucket;
  }
  return {.key = found, .ties = left};
}

std::size_t count_from(std::span<const float> values, KeyMap key, std::uint32_t least) {
  std::size_t count = 0;
  for (const float value : values) count += key(value) >= least ? 1 : 0;
  return count;
}

std::size_t keep_ranked(std::span<std::uint32_t> index, std::span<float> value, KeyMap key,
                        Rank rank) {
  std::size_t kept = 0;
  std::size_t ties = rank.ties;
  for (std::size_t i = 0; i < index.size(); ++i) {
    const std::uint32_t bits = key(value[i]);
    const bool tie = bits == rank.key && ties > 0;
    ties -= tie ? 1 : 0;
    index[kept] = index[i];
    value[kept] = value[i];
    kept += bits > rank.key || tie ? 1 : 0;
  }
  return kept;
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
