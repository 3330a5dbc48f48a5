// The shape all kernels share: elements are taken in groups of 16 *virtual lanes*, however wide the
// target's vectors are, so that every reduction adds in the same order and payload bytes are equal
// on every target.
//
// Included once per target by each kernel's .cc. Multiply and add stay separate instructions
// (-ffp-contract=off, no MulAdd): a fused one rounds differently.

#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/feedback.h"
#include "kernels/random.h"

#if defined(GRADPRESS_KERNELS_GROUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADPRESS_KERNELS_GROUP_INL_H_
#undef GRADPRESS_KERNELS_GROUP_INL_H_
#else
#define GRADPRESS_KERNELS_GROUP_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kGroup = 16;
/// Elements summed in float before the sum goes to double: 256 additions per virtual lane.
inline constexpr std::size_t kSumBlock = 4096;

using DF = hn::CappedTag<float, kGroup>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;
using VI = hn::Vec<DI>;
using MF = hn::Mask<DF>;
inline constexpr std::size_t kLanes = hn::MaxLanes(DF());
/// Vectors per group.
inline constexpr std::size_t kParts = kGroup / kLanes;

/// Elements between what a pass works on and what it asks memory for.
inline constexpr std::size_t kAhead = 512;

/// Asks for the cache line that a pass over memory comes to next. A core's own prefetcher stops at
/// the end of a page and is late after it: passes that also compute take a fifth less time with
/// this (docs/performance.md). The address is never read, so it may lie behind the end.
HWY_INLINE void ask_ahead(const float* at) { hwy::Prefetch(at + kAhead); }

/// Whether vectors from `to` on, each kLanes after the last, may be streamed.
HWY_INLINE bool streams(RenewedAt x) {
  return x.past_caches && reinterpret_cast<std::uintptr_t>(x.to) % (kLanes * sizeof(float)) == 0;
}
/// Stores a vector, past the caches if `past_caches`, which streams() has allowed.
HWY_INLINE void store_kept(VF v, float* to, bool past_caches) {
  if (past_caches) {
    hn::Stream(v, DF(), to);
  } else {
    hn::StoreU(v, DF(), to);
  }
}

/// Floats inside a payload, which may start at any byte.
HWY_INLINE VF load_bytes(const std::byte* from) {
#if HWY_TARGET == HWY_SCALAR
  float value;
  std::memcpy(&value, from, sizeof value);
  return hn::Set(DF(), value);
#else
  const hn::Repartition<std::uint8_t, DF> bytes;
  return hn::BitCast(DF(), hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(from)));
#endif
}

/// The mask as bits, lane 0 lowest.
HWY_INLINE std::uint32_t mask_bits(MF mask) {
  std::uint8_t bytes[8] = {};
  hn::StoreMaskBits(DF(), mask, bytes);
  std::uint32_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

HWY_INLINE MF sign_mask(VF v) {
  return hn::MaskFromVec(hn::BitCast(DF(), hn::BroadcastSignBit(hn::BitCast(DI(), v))));
}

/// By the IEEE sign bit. Highway 1.0.3's IfNegativeThenElse answers wrongly for float on SSSE3.
HWY_INLINE VF by_sign(VF v, VF if_negative, VF if_positive) {
  return hn::IfThenElse(sign_mask(v), if_negative, if_positive);
}

/// Sixteen running sums, one per virtual lane.
struct LaneSums {
  VF part[kParts];

  HWY_INLINE LaneSums() {
    for (std::size_t p = 0; p < kParts; ++p) part[p] = hn::Zero(DF());
  }
  HWY_INLINE void add(std::size_t p, VF v) { part[p] = hn::Add(part[p], v); }
  /// Pairwise, in double, in a fixed order.
  HWY_INLINE double total() const {
    alignas(64) float lane[kGroup];
    for (std::size_t p = 0; p < kParts; ++p) hn::Store(part[p], DF(), lane + p * kLanes);
    double sum[kGroup];
    for (std::size_t i = 0; i < kGroup; ++i) sum[i] = static_cast<double>(lane[i]);
    for (std::size_t width = kGroup / 2; width > 0; width /= 2) {
      for (std::size_t i = 0; i < width; ++i) sum[i] += sum[i + width];
    }
    return sum[0];
  }
};

/// The tail of a tensor, zero-padded to a whole group so that the vector code can take it.
struct PaddedTail {
  alignas(64) float values[kGroup] = {};
  HWY_INLINE PaddedTail(const float* from, std::size_t count) {
    std::memcpy(values, from, count * sizeof(float));
  }
};

/// The random words of `index` (one per lane), as random_word gives them.
HWY_INLINE VU random_words(RandomKey key, VU index) {
  const DU d;
  VU x = hn::Xor(index, hn::Set(d, key.low));
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(d, 0x21F0AAADU));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  x = hn::Add(x, hn::Set(d, key.high));
  x = hn::Mul(x, hn::Set(d, 0xD35A2D97U));
  return hn::Xor(x, hn::ShiftRight<15>(x));
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
