#include "kernels/quantise.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantise.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/feedback-inl.h"
#include "kernels/narrow_codes.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

using DI8 = hn::Rebind<std::int8_t, DF>;
using DU8 = hn::Rebind<std::uint8_t, DF>;

/// Blocks whose largest magnitude or norm is below this are sent as zeros: their inverse scale
/// would overflow.
inline constexpr float kLeastScale = 0x1.0p-100F;

HWY_INLINE std::uint8_t* bytes_of(std::span<std::byte> bytes) {
  return reinterpret_cast<std::uint8_t*>(bytes.data());
}
HWY_INLINE const std::uint8_t* bytes_of(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

/// Fetches the next block while this one is computed, a cache line per group: the first look at a
/// block would otherwise wait for memory, and the second leave it idle.
struct NextBlock {
  std::size_t ahead = 0;  // elements to the next block; 0 where there is none to fetch

  HWY_INLINE NextBlock(std::size_t begin, std::size_t block, std::size_t n) {
    if (block <= kMostFetched && n - begin >= 2 * block) ahead = block;
  }
  template <bool kFeedback>
  HWY_INLINE void fetch(const float* g, RenewedAt x) const {
    hwy::Prefetch(g + ahead);
    if constexpr (kFeedback) hwy::Prefetch(x.from + ahead);
  }

 private:
  static constexpr std::size_t kMostFetched = 2048;  // two blocks of gradient and residual fit L1
};

// ---------------------------------------------------------------- int8

template <bool kFeedback>
struct PeakPass {
  RangeGuard guard;
  VF peak = hn::Zero(DF());

  HWY_INLINE void group(const float* g, RenewedAt x, std::size_t /*at*/, std::size_t /*count*/) {
    for (std::size_t p = 0; p < kGroup; p += kLanes) {
      const VF v = load_x<kFeedback>(guard, g + p, kFeedback ? x.from + p : nullptr);
      peak = hn::Max(peak, hn::Abs(v));
    }
  }
};

template <bool kFeedback>
struct Int8Pass {
  RangeGuard guard;
  VF inverse, scale;
  NextBlock next;
  std::uint8_t* codes;

  HWY_INLINE void group(const float* g, RenewedAt x, std::size_t at, std::size_t count) {
    next.template fetch<kFeedback>(g, x);
    if (count == kGroup) return quantise(g, x, codes + at);
    std::uint8_t padded[kGroup];
    quantise(g, x, padded);
    std::memcpy(codes + at, padded, count);
  }

  HWY_INLINE void quantise(const float* g, RenewedAt x, std::uint8_t* to) {
    // Adding 1.5 · 2^23 rounds to a whole number, ties to even, whatever the target's conversions
    // do.
    const VF magic = hn::Set(DF(), 0x1.8p23F);
    for (std::size_t p = 0; p < kGroup; p += kLanes) {
      const VF v = load_x<kFeedback>(guard, g + p, kFeedback ? x.from + p : nullptr);
      const VF shifted = hn::Add(hn::Mul(v, inverse), magic);
      const VI code = hn::Sub(hn::BitCast(DI(), shifted), hn::BitCast(DI(), magic));
      store_bytes(DU8(), hn::BitCast(DU8(), hn::DemoteTo(DI8(), code)), to + p);
      if constexpr (kFeedback) {
        const VF value = hn::Mul(hn::Sub(shifted, magic), scale);
        store_kept(hn::Sub(v, value), x.to + p, x.past_caches);
      }
    }
  }
};

template <bool kFeedback>
HWY_INLINE bool encode_int8_blocks(const FeedbackPass& from, const BlockPayload& out) {
  const DF d;
  const std::size_t n = from.g.size();
  PeakPass<kFeedback> first{RangeGuard(from.limit)};
  std::uint8_t* scales = bytes_of(out.scales);
  for (std::size_t begin = 0; begin < n; begin += out.block) {
    const std::size_t count = std::min(out.block, n - begin);
    const float* const g = from.g.data() + begin;
    const RenewedAt x = from.kept(begin);
    first.peak = hn::Zero(d);
    each_group<kFeedback, false>(g, x, count, first);
    const float peak = hn::GetLane(hn::MaxOfLanes(d, first.peak));
    const bool sent = peak >= kLeastScale;
    const float scale = sent ? peak / 127.0F : 0.0F;
    Int8Pass<kFeedback> second{.guard = RangeGuard(from.limit),
                               .inverse = hn::Set(d, sent ? 127.0F / peak : 0.0F),
                               .scale = hn::Set(d, scale),
                               .next = NextBlock(begin, out.block, n),
                               .codes = bytes_of(out.codes) + begin};
    each_group<kFeedback, true>(g, x, count, second);
    std::memcpy(scales, &scale, sizeof scale);
    scales += sizeof scale;
  }
  return first.guard.all_in_range();
}

bool encode_int8_kernel(const FeedbackPass& from, const BlockPayload& out) {
  return from.has_feedback() ? encode_int8_blocks<true>(from, out)
                             : encode_int8_blocks<false>(from, out);
}

// ---------------------------------------------------------------- qsgd

template <bool kFeedback>
struct SquaresPass {
  RangeGuard guard;
  LaneSums sums;

  HWY_INLINE void group(const float* g, RenewedAt x, std::size_t /*at*/, std::size_t /*count*/) {
    for (std::size_t p = 0; p < kParts; ++p) {
      const std::size_t lane = p * kLanes;
      const VF v = load_x<kFeedback>(guard, g + lane, kFeedback ? x.from + lane : nullptr);
      sums.add(p, hn::Mul(v, v));
    }
  }
};

/// The squares of a block so small that they would underflow: of x · 2^60, after the first look.
template <bool kFeedback>
struct LiftedSquaresPass {
  RangeGuard guard;
  LaneSums sums;

  HWY_INLINE void group(const float* g, RenewedAt x, std::size_t /*at*/, std::size_t /*count*/) {
    for (std::size_t p = 0; p < kParts; ++p) {
      const std::size_t lane = p * kLanes;
      const VF v = load_x<kFeedback>(guard, g + lane, kFeedback ? x.from + lane : nullptr);
      const VF lifted = hn::Mul(v, hn::Set(DF(), 0x1.0p60F));
      sums.add(p, hn::Mul(lifted, lifted));
    }
  }
};

/// Σ over the block, float sums of kSumBlock elements added in double.
template <bool kFeedback, class Pass>
HWY_INLINE double sum_block(const float* g, RenewedAt x, std::size_t n, Pass& pass) {
  double total = 0.0;
  for (std::size_t begin = 0; begin < n; begin += kSumBlock) {
    pass.sums = LaneSums();
    each_group<kFeedback, false>(g + begin, kFeedback ? x + begin : x,
                                 std::min(kSumBlock, n - begin), pass);
    total += pass.sums.total();
  }
  return total;
}

template <bool kFeedback>
HWY_INLINE float block_norm(const float* g, RenewedAt x, std::size_t n,
                            SquaresPass<kFeedback>& first) {
  const double squares = sum_block<kFeedback>(g, x, n, first);
  // Above this, all squares that underflowed together are less than rounding.
  if (squares >= 0x1.0p-60) return static_cast<float>(std::sqrt(squares));
  LiftedSquaresPass<kFeedback> again{.guard = first.guard, .sums = {}};
  return static_cast<float>(std::sqrt(sum_block<kFeedback>(g, x, n, again)) * 0x1.0p-60);
}

/// Writes a group's codes, one per byte in `codes`, as elements [index, index + count) of `out`.
/// Must be called in ascending order of index: a byte is begun by its first code.
template <unsigned kBits>
HWY_INLINE void put_codes(const std::uint8_t* codes, std::size_t index, std::size_t count,
                          std::uint8_t* out) {
  if (count == kGroup && index % 8 == 0) {
    for (std::size_t half = 0; half < kGroup; half += 8) {
      std::uint64_t wide;
      std::memcpy(&wide, codes + half, sizeof wide);
      wide = squeeze<kBits>(wide);
      std::memcpy(out + (index + half) * kBits / 8, &wide, kBits);
    }
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bit = (index + i) * kBits;
    const auto code = static_cast<unsigned>(codes[i]) & ((1U << kBits) - 1U);
    const unsigned begun = bit % 8 == 0 ? 0U : out[bit / 8];
    out[bit / 8] = static_cast<std::uint8_t>(begun | (code << (bit % 8)));
  }
}

/// The inverse of put_codes; bytes past `count` are zero.
template <unsigned kBits>
HWY_INLINE void get_codes(const std::uint8_t* in, std::size_t index, std::size_t count,
                          std::uint8_t* codes) {
  if (count == kGroup && index % 8 == 0) {
    for (std::size_t half = 0; half < kGroup; half += 8) {
      std::uint64_t packed = 0;
      std::memcpy(&packed, in + (index + half) * kBits / 8, kBits);
      packed = spread<kBits>(packed);
      std::memcpy(codes + half, &packed, sizeof packed);
    }
    return;
  }
  std::memset(codes, 0, kGroup);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t bit = (index + i) * kBits;
    codes[i] = static_cast<std::uint8_t>((in[bit / 8] >> (bit % 8)) & ((1U << kBits) - 1U));
  }
}

template <bool kFeedback, unsigned kBits>
struct QsgdPass {
  RangeGuard guard;
  VF ratio, step;
  RandomStream random;
  NextBlock next;
  std::size_t begin;  // of the block
  std::uint8_t* out;

  HWY_INLINE void group(const float* g, RenewedAt x, std::size_t at, std::size_t count) {
    next.template fetch<kFeedback>(g, x);
    const std::size_t index = begin + at;
    if (kBits == 8 && count == kGroup) return quantise(g, x, index, out + index);
    std::uint8_t codes[kGroup];
    quantise(g, x, index, codes);
    if constexpr (kBits == 8) {
      std::memcpy(out + index, codes, count);
    } else {
      put_codes<kBits>(codes, index, count, out);
    }
  }

  HWY_INLINE void quantise(const float* g, RenewedAt x, std::size_t index, std::uint8_t* to) {
    const DF d;
    const VF top = hn::Set(d, static_cast<float>((1U << (kBits - 1)) - 1));
    VF x_part[kParts];
    VF level[kParts];
    random.uniforms(index, level);
    for (std::size_t p = 0; p < kParts; ++p) {
      x_part[p] =
          load_x<kFeedback>(guard, g + p * kLanes, kFeedback ? x.from + p * kLanes : nullptr);
      level[p] = hn::Add(hn::Mul(hn::Abs(x_part[p]), ratio), level[p]);
    }
    for (std::size_t p = 0; p < kParts; ++p) {
      // The conversion truncates, which of a magnitude is the floor. Min comes with `top` last: it
      // is what NaN turns to.
      const VF signed_level = hn::CopySignToAbs(hn::Min(level[p], top), x_part[p]);
      const VI code = hn::ConvertTo(DI(), signed_level);
      store_bytes(DU8(), hn::BitCast(DU8(), hn::DemoteTo(DI8(), code)), to + p * kLanes);
      if constexpr (kFeedback) {
        const VF value = hn::Mul(hn::ConvertTo(d, code), step);
        store_kept(hn::Sub(x_part[p], value), x.to + p * kLanes, x.past_caches);
      }
    }
  }
};

template <bool kFeedback, unsigned kBits>
HWY_INLINE bool encode_qsgd_blocks(const FeedbackPass& from, RandomKey key,
                                   const BlockPayload& out) {
  const DF d;
  constexpr auto kTop = static_cast<float>((1U << (kBits - 1)) - 1);
  const std::size_t n = from.g.size();
  SquaresPass<kFeedback> first{RangeGuard(from.limit), {}};
  const RandomStream random(key);
  std::uint8_t* scales = bytes_of(out.scales);
  for (std::size_t begin = 0; begin < n; begin += out.block) {
    const std::size_t count = std::min(out.block, n - begin);
    const float* const g = from.g.data() + begin;
    const RenewedAt x = from.kept(begin);
    const float measured = block_norm<kFeedback>(g, x, count, first);
    const bool sent = measured >= kLeastScale;
    const float norm = sent ? measured : 0.0F;
    QsgdPass<kFeedback, kBits> second{.guard = RangeGuard(from.limit),
                                      .ratio = hn::Set(d, sent ? kTop / norm : 0.0F),
                                      .step = hn::Set(d, norm / kTop),
                                      .random = random,
                                      .next = NextBlock(begin, out.block, n),
                                      .begin = begin,
                                      .out = bytes_of(out.codes)};
    each_group<kFeedback, true>(g, x, count, second);
    std::memcpy(scales, &norm, sizeof norm);
    scales += sizeof norm;
  }
  return first.guard.all_in_range();
}

template <unsigned kBits>
HWY_INLINE bool encode_qsgd_bits(const FeedbackPass& from, RandomKey key, const BlockPayload& out) {
  return from.has_feedback() ? encode_qsgd_blocks<true, kBits>(from, key, out)
                             : encode_qsgd_blocks<false, kBits>(from, key, out);
}

bool encode_qsgd_kernel(const FeedbackPass& from, RandomKey key, unsigned bits,
                        const BlockPayload& out) {
  return bits == 2   ? encode_qsgd_bits<2>(from, key, out)
         : bits == 4 ? encode_qsgd_bits<4>(from, key, out)
                     : encode_qsgd_bits<8>(from, key, out);
}

// ---------------------------------------------------------------- decode of int8 and qsgd

template <unsigned kBits>
struct BlockAdd {
  VF step, weight;
  std::size_t begin;  // of the block
  const std::uint8_t* in;

  HWY_INLINE void group(float* dst, std::size_t at, std::size_t count) {
    const std::size_t index = begin + at;
    if (kBits == 8 && count == kGroup) return add(in + index, dst);
    std::uint8_t codes[kGroup] = {};
    if constexpr (kBits == 8) {
      std::memcpy(codes, in + index, count);
    } else {
      get_codes<kBits>(in, index, count, codes);
    }
    add(codes, dst);
  }

  HWY_INLINE void add(const std::uint8_t* codes, float* dst) {
    const DF d;
    for (std::size_t p = 0; p < kGroup; p += kLanes) {
      VI code = hn::PromoteTo(DI(), hn::BitCast(DI8(), load_bytes(DU8(), codes + p)));
      if constexpr (kBits < 8) code = hn::ShiftRight<32 - kBits>(hn::ShiftLeft<32 - kBits>(code));
      const VF value = hn::Mul(hn::ConvertTo(d, code), step);
      hn::StoreU(hn::Add(hn::LoadU(d, dst + p), hn::Mul(value, weight)), d, dst + p);
    }
  }
};

template <unsigned kBits>
HWY_INLINE bool add_blocks(const BlockCodes& in, float weight, float* dst, std::size_t n) {
  const DF d;
  const std::uint8_t* scales = bytes_of(in.scales);
  for (std::size_t begin = 0; begin < n; begin += in.block) {
    float scale;
    std::memcpy(&scale, scales, sizeof scale);
    scales += sizeof scale;
    const float step = scale / in.scale_divisor;
    if (!std::isfinite(step * static_cast<float>(1U << (kBits - 1)))) return false;
    BlockAdd<kBits> add{.step = hn::Set(d, step),
                        .weight = hn::Set(d, weight),
                        .begin = begin,
                        .in = bytes_of(in.codes)};
    each_group_of(dst + begin, std::min(in.block, n - begin), add);
  }
  return true;
}

bool add_block_codes_kernel(const BlockCodes& in, float weight, float* dst, std::size_t n) {
  return in.bits == 2   ? add_blocks<2>(in, weight, dst, n)
         : in.bits == 4 ? add_blocks<4>(in, weight, dst, n)
                        : add_blocks<8>(in, weight, dst, n);
}

// ---------------------------------------------------------------- natural

/// ±2^(code − 110), or 0 for code 0; `sign` holds the sign bit alone.
HWY_INLINE VF power_of_two(VI code, VU sign) {
  const VI exponent = hn::Add(code, hn::Set(DI(), 17));
  const VU magnitude = hn::BitCast(DU(), hn::ShiftLeft<23>(exponent));
  const VU kept = hn::IfThenElseZero(hn::RebindMask(DU(), hn::Gt(code, hn::Zero(DI()))), magnitude);
  return hn::BitCast(DF(), hn::Or(kept, sign));
}

template <bool kFeedback>
struct NaturalPass {
  RangeGuard guard;
  RandomStream random;
  std::uint8_t* out;

  HWY_INLINE void group(const float* g, RenewedAt x, std::size_t at, std::size_t count) {
    if (count == kGroup) return quantise(g, x, at, out + at);
    std::uint8_t padded[kGroup];
    quantise(g, x, at, padded);
    std::memcpy(out + at, padded, count);
  }

  HWY_INLINE void quantise(const float* g, RenewedAt x, std::size_t index, std::uint8_t* to) {
    const DU du;
    const DI di;
    VU word[kParts];
    random.words(index, word);
    for (std::size_t p = 0; p < kParts; ++p) {
      const RenewedAt kept = kFeedback ? x + p * kLanes : x;
      const VF v = load_x<kFeedback>(guard, g + p * kLanes, kept.from);
      const VU dither = hn::And(word[p], hn::Set(du, 0x7FFFFFU));
      const VU carried = hn::Add(hn::BitCast(du, hn::Abs(v)), dither);
      const VI exponent = hn::BitCast(di, hn::ShiftRight<23>(carried));
      const VI code =
          hn::Max(hn::Min(hn::Sub(exponent, hn::Set(di, 17)), hn::Set(di, 127)), hn::Zero(di));
      const VU sign = hn::And(hn::BitCast(du, v), hn::Set(du, 0x80000000U));
      const VI byte = hn::Or(code, hn::BitCast(di, hn::ShiftRight<24>(sign)));
      store_bytes(DU8(), hn::DemoteTo(DU8(), byte), to + p * kLanes);
      if constexpr (kFeedback)
        store_kept(hn::Sub(v, power_of_two(code, sign)), kept.to, kept.past_caches);
    }
  }
};

template <bool kFeedback>
HWY_INLINE bool encode_natural_all(const FeedbackPass& from, RandomKey key, std::uint8_t* out) {
  NaturalPass<kFeedback> pass{RangeGuard(from.limit), RandomStream(key), out};
  each_group<kFeedback, true>(from.g.data(), from.kept(), from.g.size(), pass);
  return pass.guard.all_in_range();
}

bool encode_natural_kernel(const FeedbackPass& from, RandomKey key, std::uint8_t* out) {
  return from.has_feedback() ? encode_natural_all<true>(from, key, out)
                             : encode_natural_all<false>(from, key, out);
}

struct NaturalAdd {
  VF weight;
  const std::uint8_t* in;

  HWY_INLINE void group(float* dst, std::size_t at, std::size_t count) {
    if (count == kGroup) return add(in + at, dst);
    std::uint8_t padded[kGroup] = {};
    std::memcpy(padded, in + at, count);
    add(padded, dst);
  }

  HWY_INLINE void add(const std::uint8_t* from, float* dst) {
    const DF d;
    for (std::size_t p = 0; p < kGroup; p += kLanes) {
      const VU byte = hn::PromoteTo(DU(), load_bytes(DU8(), from + p));
      const VI code = hn::BitCast(DI(), hn::And(byte, hn::Set(DU(), 127)));
      const VU sign = hn::And(hn::ShiftLeft<24>(byte), hn::Set(DU(), 0x80000000U));
      const VF value = power_of_two(code, sign);
      hn::StoreU(hn::Add(hn::LoadU(d, dst + p), hn::Mul(value, weight)), d, dst + p);
    }
  }
};

void add_natural_kernel(const std::uint8_t* in, float weight, float* dst, std::size_t n) {
  NaturalAdd add{.weight = hn::Set(DF(), weight), .in = in};
  each_group_of(dst, n, add);
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(encode_int8_kernel);
HWY_EXPORT(encode_qsgd_kernel);
HWY_EXPORT(encode_natural_kernel);
HWY_EXPORT(add_block_codes_kernel);
HWY_EXPORT(add_natural_kernel);

bool encode_int8(const FeedbackPass& pass, const BlockPayload& out) {
  return HWY_DYNAMIC_DISPATCH(encode_int8_kernel)(pass, out);
}
bool encode_qsgd(const FeedbackPass& pass, RandomKey key, unsigned bits, const BlockPayload& out) {
  return HWY_DYNAMIC_DISPATCH(encode_qsgd_kernel)(pass, key, bits, out);
}
bool encode_natural(const FeedbackPass& pass, RandomKey key, std::span<std::byte> out) {
  return HWY_DYNAMIC_DISPATCH(encode_natural_kernel)(pass, key,
                                                     reinterpret_cast<std::uint8_t*>(out.data()));
}
bool add_block_codes(const BlockCodes& in, float weight, std::span<float> dst) {
  return HWY_DYNAMIC_DISPATCH(add_block_codes_kernel)(in, weight, dst.data(), dst.size());
}
void add_natural(std::span<const std::byte> in, float weight, std::span<float> dst) {
  HWY_DYNAMIC_DISPATCH(add_natural_kernel)
  (reinterpret_cast<const std::uint8_t*>(in.data()), weight, dst.data(), dst.size());
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
