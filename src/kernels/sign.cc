#include "kernels/sign.h"

#include <bit>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sign.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

/// The running part of encode_signs: constants, and sums of the current block.
template <bool kFeedback>
struct SignPass {
  VF sent_positive, sent_negative, bound;
  LaneSums positive, negative;
  VF worst = hn::Zero(DF());  // lanes turn to all ones where an element was out of range

  /// Sixteen elements; returns their sign bits. `active` of them count, the others are padding.
  template <bool kWhole>
  HWY_INLINE std::uint32_t group(const float* g, RenewedAt x, std::size_t active) {
    const DF d;
    std::uint32_t bits = 0;
    for (std::size_t p = 0; p < kParts; ++p) {
      const VF raw = hn::LoadU(d, g + p * kLanes);
      const MF fine = hn::Lt(hn::Abs(raw), bound);
      worst = hn::Or(worst, hn::IfThenZeroElse(fine, hn::Set(d, -1.0F)));
      VF v = hn::IfThenElseZero(fine, raw);
      if constexpr (kFeedback) {
        const VF old = hn::LoadU(d, x.from + p * kLanes);
        v = hn::Add(v, hn::Sub(old, by_sign(old, sent_negative, sent_positive)));
      }
      if constexpr (!kWhole) {
        const std::size_t done = p * kLanes;
        v = hn::IfThenElseZero(hn::FirstN(d, active > done ? active - done : 0), v);
      }
      if constexpr (kFeedback) store_kept(v, x.to + p * kLanes, x.past_caches);
      positive.add(p, hn::Max(v, hn::Zero(d)));
      negative.add(p, hn::Min(v, hn::Zero(d)));
      bits |= mask_bits(sign_mask(v)) << (p * kLanes);
    }
    return bits;
  }
};

template <bool kFeedback>
HWY_INLINE SignSums encode_all(const float* g, RenewedAt x, std::size_t n, SignLevels sent,
                               float limit, std::uint8_t* bits) {
  const DF d;
  SignSums sums;
  VF worst = hn::Zero(d);
  for (std::size_t begin = 0; begin < n; begin += kSumBlock) {
    const std::size_t count = n - begin < kSumBlock ? n - begin : kSumBlock;
    SignPass<kFeedback> pass{.sent_positive = hn::Set(d, sent.positive),
                             .sent_negative = hn::Set(d, sent.negative),
                             .bound = hn::Set(d, limit),
                             .positive = {},
                             .negative = {}};
    RenewedAt stored = kFeedback ? x + begin : x;
    stored.past_caches = kFeedback && streams(stored);
    std::uint32_t negatives = 0;
    std::size_t i = 0;
    for (; i + kGroup <= count; i += kGroup) {
      ask_ahead(g + begin + i);
      if constexpr (kFeedback) ask_ahead(stored.from + i);
      const std::uint32_t word =
          pass.template group<true>(g + begin + i, kFeedback ? stored + i : stored, kGroup);
      negatives += static_cast<std::uint32_t>(std::popcount(word));
      const auto packed = static_cast<std::uint16_t>(word);
      std::memcpy(bits + (begin + i) / 8, &packed, sizeof packed);
    }
    if (i < count) {
      const std::size_t rest = count - i;
      const PaddedTail tail_g(g + begin + i, rest);
      PaddedTail tail_x(kFeedback ? stored.from + i : g, kFeedback ? rest : 0);
      const std::uint32_t word = pass.template group<false>(
          tail_g.values, RenewedAt{.from = tail_x.values, .to = tail_x.values}, rest);
      if constexpr (kFeedback) std::memcpy(stored.to + i, tail_x.values, rest * sizeof(float));
      negatives += static_cast<std::uint32_t>(std::popcount(word));
      for (std::size_t byte = 0; byte * 8 < rest; ++byte) {
        bits[(begin + i) / 8 + byte] = static_cast<std::uint8_t>(word >> (8 * byte));
      }
    }
    sums.positive += pass.positive.total();
    sums.negative += pass.negative.total();
    sums.negatives += negatives;
    worst = hn::Or(worst, pass.worst);
  }
  sums.in_range = hn::AllTrue(d, hn::Eq(worst, hn::Zero(d)));
  return sums;
}

SignSums encode_feedback_kernel(const float* g, RenewedAt x, std::size_t n, SignLevels sent,
                                float limit, std::uint8_t* bits) {
  return encode_all<true>(g, x, n, sent, limit, bits);
}

SignSums encode_plain_kernel(const float* g, std::size_t n, float limit, std::uint8_t* bits) {
  return encode_all<false>(g, RenewedAt{}, n, SignLevels{}, limit, bits);
}

void subtract_levels_kernel(float* x, std::size_t n, SignLevels sent) {
  const DF d;
  const VF positive = hn::Set(d, sent.positive);
  const VF negative = hn::Set(d, sent.negative);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF v = hn::LoadU(d, x + i);
    hn::StoreU(hn::Sub(v, by_sign(v, negative, positive)), d, x + i);
  }
  for (; i < n; ++i) {
    const bool minus = (std::bit_cast<std::uint32_t>(x[i]) >> 31) != 0;
    x[i] -= minus ? sent.negative : sent.positive;
  }
}

void add_levels_kernel(const std::uint8_t* bits, SignLevels levels, float* dst, std::size_t n) {
  const DF d;
  const DU du;
  const VF positive = hn::Set(d, levels.positive);
  const VF negative = hn::Set(d, levels.negative);
  // Lane j of part p tests bit p·kLanes + j of the group's 16.
  const VU lane_bit = hn::Shl(hn::Set(du, 1), hn::Iota(du, 0));
  std::size_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    ask_ahead(dst + i);
    std::uint16_t word;
    std::memcpy(&word, bits + i / 8, sizeof word);
    for (std::size_t p = 0; p < kParts; ++p) {
      const VU spread = hn::Set(du, static_cast<std::uint32_t>(word) >> (p * kLanes));
      const MF minus = hn::RebindMask(d, hn::TestBit(spread, lane_bit));
      float* const to = dst + i + p * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(d, to), hn::IfThenElse(minus, negative, positive)), d, to);
    }
  }
  for (; i < n; ++i) {
    const bool minus = ((bits[i / 8] >> (i % 8)) & 1U) != 0;
    dst[i] += minus ? levels.negative : levels.positive;
  }
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(encode_feedback_kernel);
HWY_EXPORT(encode_plain_kernel);
HWY_EXPORT(subtract_levels_kernel);
HWY_EXPORT(add_levels_kernel);

namespace {
std::uint8_t* raw(std::span<std::byte> bytes) {
  return reinterpret_cast<std::uint8_t*>(bytes.data());
}
const std::uint8_t* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}
}  // namespace

SignSums encode_signs(std::span<const float> g, const Renewal& x, SignLevels sent, float limit,
                      std::span<std::byte> bits) {
  return HWY_DYNAMIC_DISPATCH(encode_feedback_kernel)(g.data(), pointers(x), g.size(), sent, limit,
                                                      raw(bits));
}
SignSums encode_signs(std::span<const float> g, float limit, std::span<std::byte> bits) {
  return HWY_DYNAMIC_DISPATCH(encode_plain_kernel)(g.data(), g.size(), limit, raw(bits));
}
void subtract_levels(std::span<float> x, SignLevels sent) {
  HWY_DYNAMIC_DISPATCH(subtract_levels_kernel)(x.data(), x.size(), sent);
}
void add_levels(std::span<const std::byte> bits, SignLevels levels, std::span<float> dst) {
  HWY_DYNAMIC_DISPATCH(add_levels_kernel)(raw(bits), levels, dst.data(), dst.size());
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
