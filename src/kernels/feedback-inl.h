// The vector side of feedback.h: gradients with a range check, residuals, and tails.
// Included once per target by each kernel's .cc, after group-inl.h.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/feedback.h"
#include "kernels/group-inl.h"

#if defined(GRADPRESS_KERNELS_FEEDBACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADPRESS_KERNELS_FEEDBACK_INL_H_
#undef GRADPRESS_KERNELS_FEEDBACK_INL_H_
#else
#define GRADPRESS_KERNELS_FEEDBACK_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

/// Lets elements in range through, turns the others to zero, and remembers whether there were any.
struct RangeGuard {
  VF bound;
  VF fine;  // all ones in the lanes that never saw an element out of range

  HWY_INLINE explicit RangeGuard(float limit)
      : bound(hn::Set(DF(), limit)), fine(hn::BitCast(DF(), hn::Set(DU(), 0xFFFFFFFFU))) {}
  HWY_INLINE VF take(VF raw) {
    const MF in_range = hn::Lt(hn::Abs(raw), bound);
    fine = hn::And(fine, hn::VecFromMask(DF(), in_range));
    return hn::IfThenElseZero(in_range, raw);
  }
  HWY_INLINE bool all_in_range() const { return hn::AllTrue(DF(), hn::MaskFromVec(fine)); }
};

/// Loads a vector of x: the gradient within range, plus the residual if there is feedback.
template <bool kFeedback>
HWY_INLINE VF load_x(RangeGuard& guard, const float* g, const float* residual) {
  VF x = guard.take(hn::LoadU(DF(), g));
  if constexpr (kFeedback) x = hn::Add(x, hn::LoadU(DF(), residual));
  return x;
}

/// Calls pass.group(g, x, at, count) for every group of 16 of a block's `n` elements; the last one
/// may count fewer, and then sees zero-padded copies. Passes read x.from; one that `kKeeps` writes
/// all of x.to, by store_kept().
template <bool kFeedback, bool kKeeps, class Pass>
HWY_INLINE void each_group(const float* g, RenewedAt x, std::size_t n, Pass& pass) {
  x.past_caches = kFeedback && kKeeps && streams(x);
  std::size_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    ask_ahead(g + i);
    if constexpr (kFeedback) ask_ahead(x.from + i);
    pass.group(g + i, kFeedback ? x + i : x, i, kGroup);
  }
  if (i == n) return;
  const PaddedTail tail_g(g + i, n - i);
  PaddedTail tail_x(kFeedback ? x.from + i : g, kFeedback ? n - i : 0);
  pass.group(tail_g.values, RenewedAt{.from = tail_x.values, .to = tail_x.values}, i, n - i);
  if constexpr (kFeedback && kKeeps) {
    std::memcpy(x.to + i, tail_x.values, (n - i) * sizeof(float));
  }
}

/// Calls add.group(dst, at, count) for every group of 16; the last one may count fewer, and then
/// sees a padded copy, written back after.
template <class Add>
HWY_INLINE void each_group_of(float* dst, std::size_t n, Add& add) {
  std::size_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    ask_ahead(dst + i);
    add.group(dst + i, i, kGroup);
  }
  if (i == n) return;
  PaddedTail tail(dst + i, n - i);
  add.group(tail.values, i, n - i);
  std::memcpy(dst + i, tail.values, (n - i) * sizeof(float));
}

/// The random words of a group's elements, and the numbers in [0, 1) they stand for.
/// Make one outside the loop: Highway builds Iota lane by lane through memory.
struct RandomStream {
  RandomKey key;
  VU lanes = hn::Iota(DU(), 0);

  HWY_INLINE explicit RandomStream(RandomKey from) : key(from) {}
  /// Of the group whose first element is `index`.
  HWY_INLINE void words(std::size_t index, VU (&out)[kParts]) const {
    for (std::size_t p = 0; p < kParts; ++p) {
      const VU first = hn::Set(DU(), static_cast<std::uint32_t>(index + p * kLanes));
      out[p] = random_words(key, hn::Add(first, lanes));
    }
  }
  HWY_INLINE void uniforms(std::size_t index, VF (&out)[kParts]) const {
    VU word[kParts];
    words(index, word);
    for (std::size_t p = 0; p < kParts; ++p) {
      const VF whole = hn::ConvertTo(DF(), hn::BitCast(DI(), hn::ShiftRight<8>(word[p])));
      out[p] = hn::Mul(whole, hn::Set(DF(), 0x1.0p-24F));
    }
  }
};

/// Stores and loads of narrow vectors at any byte address.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_bytes(D d, V v, std::uint8_t* to) {
  alignas(64) hn::TFromD<D> lanes[hn::MaxLanes(D())];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, sizeof lanes);
}
template <class D>
HWY_INLINE hn::Vec<D> load_bytes(D d, const std::uint8_t* from) {
  alignas(64) hn::TFromD<D> lanes[hn::MaxLanes(D())];
  std::memcpy(lanes, from, sizeof lanes);
  return hn::Load(d, lanes);
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
