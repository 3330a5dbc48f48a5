#include "kernels/ternary.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/ternary.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/feedback-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

/// Sums of x − origin over one block. The origin is a member of the block: a block of equal
/// elements has no spread at all, not one of rounding errors.
template <bool kFeedback>
struct SpreadPass {
  RangeGuard guard;
  VF peak = hn::Zero(DF());
  VF origin = hn::Zero(DF());
  LaneSums sums, squares;

  HWY_INLINE void group(const float* g, RenewedAt x, std::size_t /*at*/, std::size_t count) {
    for (std::size_t p = 0; p < kParts; ++p) {
      const std::size_t lane = p * kLanes;
      const VF v = load_x<kFeedback>(guard, g + lane, kFeedback ? x.from + lane : nullptr);
      peak = hn::Max(peak, hn::Abs(v));
      VF away = hn::Sub(v, origin);
      if (count < kGroup) {
        away = hn::IfThenElseZero(hn::FirstN(DF(), count > lane ? count - lane : 0), away);
      }
      sums.add(p, away);
      squares.add(p, hn::Mul(away, away));
    }
  }
};

template <bool kFeedback>
HWY_INLINE Spread measure_blocks(const FeedbackPass& from) {
  const DF d;
  const std::size_t n = from.g.size();
  SpreadPass<kFeedback> pass{.guard = RangeGuard(from.limit), .sums = {}, .squares = {}};
  double mean = 0.0;
  double squares = 0.0;  // Σ (x − mean)²
  for (std::size_t begin = 0; begin < n; begin += kSumBlock) {
    const std::size_t count = std::min(kSumBlock, n - begin);
    const float* const g = from.g.data() + begin;
    const RenewedAt x = from.kept(begin);
    const float origin =
        (std::fabs(g[0]) < from.limit ? g[0] : 0.0F) + (kFeedback ? x.from[0] : 0.0F);
    pass.origin = hn::Set(d, origin);
    pass.sums = LaneSums();
    pass.squares = LaneSums();
    each_group<kFeedback, false>(g, x, count, pass);
    // The block's own mean and squares join those of the blocks before it.
    const auto in_block = static_cast<double>(count);
    const auto before = static_cast<double>(begin);
    const double away = pass.sums.total() / in_block;
    const double block_squares = pass.squares.total() - away * away * in_block;
    const double apart = static_cast<double>(origin) + away - mean;
    mean += apart * (in_block / (before + in_block));
    squares +=
        std::max(0.0, block_squares) + apart * apart * (before * in_block / (before + in_block));
  }
  return {.sigma = n == 0 ? 0.0 : std::sqrt(squares / static_cast<double>(n)),
          .peak = hn::GetLane(hn::MaxOfLanes(d, pass.peak)),
          .in_range = pass.guard.all_in_range()};
}

Spread measure_spread_kernel(const FeedbackPass& from) {
  return from.has_feedback() ? measure_blocks<true>(from) : measure_blocks<false>(from);
}

/// A group's 16 kept bits and 16 sign bits as they travel: two bytes for each 8 elements.
HWY_INLINE std::uint32_t interleave(std::uint32_t kept, std::uint32_t signs) {
  return (kept & 0xFFU) | ((signs & 0xFFU) << 8) | ((kept & 0xFF00U) << 8) |
         ((signs & 0xFF00U) << 16);
}

/// Bytes that `count` elements travel in.
HWY_INLINE std::size_t ternary_bytes(std::size_t count) { return (count + 3) / 4; }

template <bool kFeedback>
struct TernaryPass {
  RangeGuard guard;
  VF scale;
  RandomStream random;
  std::uint8_t* out;

  HWY_INLINE void group(const float* g, RenewedAt x, std::size_t at, std::size_t count) {
    std::uint32_t kept_bits = 0;
    std::uint32_t sign_bits = 0;
    VF u[kParts];
    random.uniforms(at, u);
    for (std::size_t p = 0; p < kParts; ++p) {
      const std::size_t lane = p * kLanes;
      const VF v = load_x<kFeedback>(guard, g + lane, kFeedback ? x.from + lane : nullptr);
      // scale ≤ c, and the largest magnitude where there is no c: both cut |x| alike.
      const MF kept = hn::Lt(hn::Mul(u[p], scale), hn::Min(hn::Abs(v), scale));
      kept_bits |= mask_bits(kept) << lane;
      sign_bits |= mask_bits(sign_mask(v)) << lane;
      if constexpr (kFeedback) {
        const VF value = hn::IfThenElseZero(kept, by_sign(v, hn::Neg(scale), scale));
        store_kept(hn::Sub(v, value), x.to + lane, x.past_caches);
      }
    }
    std::uint32_t word = interleave(kept_bits, sign_bits & kept_bits);
    // Padding is zero and never kept. A last half group of up to 4 shares one byte.
    if (count % 8 != 0 && count % 8 <= 4) {
      const std::size_t at_byte = count / 8 * 2;
      const std::uint32_t last = word >> (8 * at_byte);
      const std::uint32_t joined = (last & 0xFU) | ((last >> 8 & 0xFU) << 4);
      word = (word & ~(0xFFFFFFFFU << (8 * at_byte))) | (joined << (8 * at_byte));
    }
    if (count == kGroup) {
      std::memcpy(out + at / 4, &word, sizeof word);
    } else {
      std::memcpy(out + at / 4, &word, ternary_bytes(count));
    }
  }
};

template <bool kFeedback>
HWY_INLINE void encode_ternary_all(const FeedbackPass& from, RandomKey key, float scale,
                                   std::uint8_t* out) {
  TernaryPass<kFeedback> pass{.guard = RangeGuard(from.limit),
                              .scale = hn::Set(DF(), scale),
                              .random = RandomStream(key),
                              .out = out};
  each_group<kFeedback, true>(from.g.data(), from.kept(), from.g.size(), pass);
}

void encode_ternary_kernel(const FeedbackPass& from, RandomKey key, float scale,
                           std::uint8_t* out) {
  return from.has_feedback() ? encode_ternary_all<true>(from, key, scale, out)
                             : encode_ternary_all<false>(from, key, scale, out);
}

struct TernaryAdd {
  VF plus, minus;
  VU lane_bit;  // lane j tests bit j
  const std::uint8_t* in;

  HWY_INLINE void group(float* dst, std::size_t at, std::size_t count) {
    const DF d;
    const DU du;
    std::uint32_t word = 0;
    std::memcpy(&word, in + at / 4, count == kGroup ? sizeof word : ternary_bytes(count));
    if (count % 8 != 0 && count % 8 <= 4) {
      const std::size_t at_byte = count / 8 * 2;
      const std::uint32_t joined = word >> (8 * at_byte);
      const std::uint32_t last = (joined & 0xFU) | ((joined >> 4 & 0xFU) << 8);
      word = (word & ~(0xFFFFFFFFU << (8 * at_byte))) | (last << (8 * at_byte));
    }
    const std::uint32_t kept_bits = (word & 0xFFU) | ((word >> 8) & 0xFF00U);
    const std::uint32_t sign_bits = ((word >> 8) & 0xFFU) | ((word >> 16) & 0xFF00U);
    for (std::size_t p = 0; p < kGroup; p += kLanes) {
      const MF kept = hn::RebindMask(d, hn::TestBit(hn::Set(du, kept_bits >> p), lane_bit));
      const MF negative = hn::RebindMask(d, hn::TestBit(hn::Set(du, sign_bits >> p), lane_bit));
      const VF value = hn::IfThenElseZero(kept, hn::IfThenElse(negative, minus, plus));
      hn::StoreU(hn::Add(hn::LoadU(d, dst + p), value), d, dst + p);
    }
  }
};

void add_ternary_kernel(const std::uint8_t* in, float scale, float weight, float* dst,
                        std::size_t n) {
  TernaryAdd add{.plus = hn::Set(DF(), scale * weight),
                 .minus = hn::Set(DF(), -scale * weight),
                 .lane_bit = hn::Shl(hn::Set(DU(), 1), hn::Iota(DU(), 0)),
                 .in = in};
  each_group_of(dst, n, add);
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(measure_spread_kernel);
HWY_EXPORT(encode_ternary_kernel);
HWY_EXPORT(add_ternary_kernel);

Spread measure_spread(const FeedbackPass& pass) {
  return HWY_DYNAMIC_DISPATCH(measure_spread_kernel)(pass);
}
void encode_ternary(const FeedbackPass& pass, RandomKey key, float scale,
                    std::span<std::byte> out) {
  HWY_DYNAMIC_DISPATCH(encode_ternary_kernel)
  (pass, key, scale, reinterpret_cast<std::uint8_t*>(out.data()));
}
void add_ternary(std::span<const std::byte> in, float scale, float weight, std::span<float> dst) {
  HWY_DYNAMIC_DISPATCH(add_ternary_kernel)
  (reinterpret_cast<const std::uint8_t*>(in.data()), scale, weight, dst.data(), dst.size());
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
