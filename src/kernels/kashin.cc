#include "kernels/kashin.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kashin.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/feedback-inl.h"
#include "kernels/narrow_codes.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

/// Below this a block is sent as zeros: the inverse of its largest coefficient would overflow.
inline constexpr float kLeastPeak = 0x1.0p-100F;
inline constexpr float kMostPeak = 0x1.0p100F;

// ---------------------------------------------------------------- the transform
//
// Stages of butterflies (a, b) → (a + b, a − b) at distance 1, 2, 4, …: every target adds the same
// two numbers, so that the results are equal whatever its vectors' width.

/// Distances 1 and 2, inside of four neighbours.
HWY_INLINE void near_stages(float* v, std::size_t n) {
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t i = 0; i < n; i += 4) {
    const float a = v[i] + v[i + 1];
    const float b = v[i] - v[i + 1];
    const float c = v[i + 2] + v[i + 3];
    const float d = v[i + 2] - v[i + 3];
    v[i] = a + c;
    v[i + 1] = b + d;
    v[i + 2] = a - c;
    v[i + 3] = b - d;
  }
#else
  // At least four lanes; shuffles work on each four of them.
  const DU du;
  const VU lane = hn::Iota(du, 0);
  const VU top = hn::Set(du, 0x80000000U);
  const VF minus_odd = hn::BitCast(DF(), hn::And(hn::ShiftLeft<31>(lane), top));
  const VF minus_upper = hn::BitCast(DF(), hn::And(hn::ShiftLeft<30>(lane), top));
  for (std::size_t i = 0; i < n; i += kLanes) {
    VF x = hn::Load(DF(), v + i);
    x = hn::Add(hn::Shuffle2301(x), hn::Xor(x, minus_odd));
    x = hn::Add(hn::Shuffle1032(x), hn::Xor(x, minus_upper));
    hn::Store(x, DF(), v + i);
  }
#endif
}

/// Two stages in one pass: distances h and 2h. Requires: n is a multiple of 4h, h of D's lanes.
template <class D>
HWY_INLINE void two_stages(D d, float* v, std::size_t n, std::size_t h) {
  for (std::size_t i = 0; i < n; i += 4 * h) {
    for (std::size_t j = i; j < i + h; j += hn::MaxLanes(D())) {
      const auto a = hn::Load(d, v + j);
      const auto b = hn::Load(d, v + j + h);
      const auto c = hn::Load(d, v + j + 2 * h);
      const auto e = hn::Load(d, v + j + 3 * h);
      const auto ab = hn::Add(a, b);
      const auto a_b = hn::Sub(a, b);
      const auto ce = hn::Add(c, e);
      const auto c_e = hn::Sub(c, e);
      hn::Store(hn::Add(ab, ce), d, v + j);
      hn::Store(hn::Add(a_b, c_e), d, v + j + h);
      hn::Store(hn::Sub(ab, ce), d, v + j + 2 * h);
      hn::Store(hn::Sub(a_b, c_e), d, v + j + 3 * h);
    }
  }
}

/// The Walsh-Hadamard transform, not normalised. Requires: n is a power of two from 16 on; v is
/// aligned to 64 bytes.
HWY_INLINE void transform(float* v, std::size_t n) {
  near_stages(v, n);
  two_stages(hn::CappedTag<float, 4>(), v, n, 4);
  std::size_t h = 16;
  for (; 4 * h <= n; h *= 4) two_stages(DF(), v, n, h);
  if (h == n) return;
  for (std::size_t j = 0; j < h; j += kLanes) {
    const VF a = hn::Load(DF(), v + j);
    const VF b = hn::Load(DF(), v + j + h);
    hn::Store(hn::Add(a, b), DF(), v + j);
    hn::Store(hn::Sub(a, b), DF(), v + j + h);
  }
}

/// ± by the lowest bit of each element's random word.
HWY_INLINE VF with_sign(VF v, VU word) {
  return hn::Xor(v, hn::BitCast(DF(), hn::ShiftLeft<31>(word)));
}

// ---------------------------------------------------------------- codes

using DU8 = hn::Rebind<std::uint8_t, DF>;

/// Sixteen codes below 2^kBits, a byte each, to 2 · kBits bytes.
template <unsigned kBits>
HWY_INLINE void pack(const std::uint8_t* codes, std::uint8_t* to) {
  if constexpr (kBits == 8) {
    std::memcpy(to, codes, kGroup);
  } else {
    for (std::size_t half = 0; half < 2; ++half) {
      std::uint64_t wide;
      std::memcpy(&wide, codes + 8 * half, sizeof wide);
      wide = squeeze<kBits>(wide);
      std::memcpy(to + half * kBits, &wide, kBits);
    }
  }
}

template <unsigned kBits>
HWY_INLINE void unpack(const std::uint8_t* from, std::uint8_t* codes) {
  if constexpr (kBits == 8) {
    std::memcpy(codes, from, kGroup);
  } else {
    for (std::size_t half = 0; half < 2; ++half) {
      std::uint64_t wide = 0;
      std::memcpy(&wide, from + half * kBits, kBits);
      wide = spread<kBits>(wide);
      std::memcpy(codes + 8 * half, &wide, sizeof wide);
    }
  }
}

/// The codes' value: coefficient = code · step − peak, with step = 2 · peak / (2^bits − 1).
template <unsigned kBits>
struct Levels {
  static constexpr float kMost = (1U << kBits) - 1;
  float peak;
  float step;
  explicit Levels(float largest) : peak(largest), step(2.0F * largest / kMost) {}
};

template <unsigned kBits>
HWY_INLINE void dequantise(const std::uint8_t* codes, float peak, float* v, std::size_t n) {
  const Levels<kBits> levels(peak);
  const VF step = hn::Set(DF(), levels.step);
  const VF low = hn::Set(DF(), levels.peak);
  std::uint8_t group[kGroup];
  for (std::size_t i = 0; i < n; i += kGroup) {
    unpack<kBits>(codes + i * kBits / 8, group);
    for (std::size_t p = 0; p < kGroup; p += kLanes) {
      const VF code = hn::ConvertTo(DF(), hn::PromoteTo(DI(), load_bytes(DU8(), group + p)));
      hn::Store(hn::Sub(hn::Mul(code, step), low), DF(), v + i + p);
    }
  }
}

template <unsigned kBits>
HWY_INLINE void quantise(const float* v, std::size_t n, float peak, const RandomStream& random,
                         std::size_t index, std::uint8_t* codes) {
  const DF d;
  const float half = Levels<kBits>::kMost / 2.0F;
  const VF most = hn::Set(d, Levels<kBits>::kMost);
  const VF middle = hn::Set(d, half);
  const VF inverse = hn::Set(d, half / peak);
  std::uint8_t group[kGroup];
  for (std::size_t i = 0; i < n; i += kGroup) {
    VF uniform[kParts];
    random.uniforms(index + i, uniform);
    for (std::size_t p = 0; p < kParts; ++p) {
      const VF c = hn::Load(d, v + i + p * kLanes);
      const VF at = hn::Add(hn::Add(hn::Mul(c, inverse), middle), uniform[p]);
      const VF level = hn::Min(hn::Max(at, hn::Zero(d)), most);
      const auto code = hn::DemoteTo(DU8(), hn::ConvertTo(DI(), level));
      store_bytes(DU8(), code, group + p * kLanes);
    }
    pack<kBits>(group, codes + i * kBits / 8);
  }
}

// ---------------------------------------------------------------- blocks

/// One block's way in: what is encoded, into `v`, with the frame's signs.
template <bool kFeedback>
struct LoadPass {
  RangeGuard guard;
  const RandomStream& signs;
  float* v;
  std::size_t index;  ///< of the block's first element in the shard

  HWY_INLINE void group(const float* g, RenewedAt x, std::size_t at, std::size_t /*count*/) {
    VU words[kParts];
    signs.words(index + at, words);
    for (std::size_t p = 0; p < kParts; ++p) {
      const std::size_t lane = p * kLanes;
      const VF value = load_x<kFeedback>(guard, g + lane, kFeedback ? x.from + lane : nullptr);
      if constexpr (kFeedback) hn::StoreU(value, DF(), x.to + lane);
      hn::Store(with_sign(value, words[p]), DF(), v + at + lane);
    }
  }
};

/// One block's way back: to ← to + factor · v, with the frame's signs.
struct AddPass {
  const RandomStream& signs;
  const float* v;
  std::size_t index;
  VF factor;

  HWY_INLINE void group(float* to, std::size_t at, std::size_t /*count*/) {
    VU words[kParts];
    signs.words(index + at, words);
    for (std::size_t p = 0; p < kParts; ++p) {
      const std::size_t lane = p * kLanes;
      const VF value = hn::Mul(hn::Load(DF(), v + at + lane), factor);
      const VF sum = hn::Add(hn::LoadU(DF(), to + lane), with_sign(value, words[p]));
      hn::StoreU(sum, DF(), to + lane);
    }
  }
};

HWY_INLINE float largest(const float* v, std::size_t n) {
  VF most = hn::Zero(DF());
  for (std::size_t i = 0; i < n; i += kLanes) {
    most = hn::Max(most, hn::Abs(hn::Load(DF(), v + i)));
  }
  return hn::GetLane(hn::MaxOfLanes(DF(), most));
}

template <unsigned kBits, bool kFeedback>
HWY_INLINE bool encode_all(const FeedbackPass& from, const FrameKeys& keys, std::uint8_t* out) {
  const std::size_t n = from.g.size();
  const RandomStream signs(keys.frame);
  const RandomStream rounding(keys.rounding);
  alignas(64) float v[kFrameElems];
  LoadPass<kFeedback> load{RangeGuard(from.limit), signs, v, 0};
  for (std::size_t begin = 0; begin < n; begin += kFrameElems) {
    const std::size_t count = std::min(kFrameElems, n - begin);
    const std::size_t length = frame_length(count);
    RenewedAt x = from.kept(begin);
    x.past_caches = false;  // the way back reads it
    std::fill(v + count / kGroup * kGroup, v + length, 0.0F);
    load.index = begin;
    each_group<kFeedback, kFeedback>(from.g.data() + begin, x, count, load);
    transform(v, length);
    const float peak = largest(v, length);
    const float sent = peak >= kLeastPeak ? peak : 0.0F;
    std::memcpy(out, &sent, sizeof sent);
    out += sizeof sent;
    const std::size_t bytes = length * kBits / 8;
    if (sent == 0.0F) {
      std::memset(out, 0, bytes);
    } else {
      quantise<kBits>(v, length, sent, rounding, begin, out);
      if constexpr (kFeedback) {
        dequantise<kBits>(out, sent, v, length);
        transform(v, length);
        AddPass back{signs, v, begin, hn::Set(DF(), -1.0F / static_cast<float>(length))};
        each_group_of(x.to, count, back);
      }
    }
    out += bytes;
  }
  return load.guard.all_in_range();
}

template <unsigned kBits>
HWY_INLINE bool add_all(const std::uint8_t* in, RandomKey frame, float weight,
                        std::span<float> dst) {
  const RandomStream signs(frame);
  alignas(64) float v[kFrameElems];
  for (std::size_t begin = 0; begin < dst.size(); begin += kFrameElems) {
    const std::size_t count = std::min(kFrameElems, dst.size() - begin);
    const std::size_t length = frame_length(count);
    float peak;
    std::memcpy(&peak, in, sizeof peak);
    in += sizeof peak;
    if (!(peak >= 0.0F && peak < kMostPeak)) return false;
    if (peak > 0.0F) {
      dequantise<kBits>(in, peak, v, length);
      transform(v, length);
      AddPass add{signs, v, begin, hn::Set(DF(), weight / static_cast<float>(length))};
      each_group_of(dst.data() + begin, count, add);
    }
    in += length * kBits / 8;
  }
  return true;
}

bool encode_frames_kernel(const FeedbackPass& from, const FrameKeys& keys, unsigned bits,
                          std::uint8_t* out) {
  const bool feedback = from.has_feedback();
  if (bits == 2) {
    return feedback ? encode_all<2, true>(from, keys, out) : encode_all<2, false>(from, keys, out);
  }
  if (bits == 4) {
    return feedback ? encode_all<4, true>(from, keys, out) : encode_all<4, false>(from, keys, out);
  }
  return feedback ? encode_all<8, true>(from, keys, out) : encode_all<8, false>(from, keys, out);
}

bool add_frames_kernel(const std::uint8_t* in, RandomKey frame, unsigned bits, float weight,
                       std::span<float> dst) {
  if (bits == 2) return add_all<2>(in, frame, weight, dst);
  if (bits == 4) return add_all<4>(in, frame, weight, dst);
  return add_all<8>(in, frame, weight, dst);
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(encode_frames_kernel);
HWY_EXPORT(add_frames_kernel);

bool encode_frames(const FeedbackPass& pass, const FrameKeys& keys, unsigned bits,
                   std::span<std::byte> out) {
  return HWY_DYNAMIC_DISPATCH(encode_frames_kernel)(pass, keys, bits,
                                                    reinterpret_cast<std::uint8_t*>(out.data()));
}
bool add_frames(std::span<const std::byte> in, RandomKey frame, unsigned bits, float weight,
                std::span<float> dst) {
  return HWY_DYNAMIC_DISPATCH(add_frames_kernel)(reinterpret_cast<const std::uint8_t*>(in.data()),
                                                 frame, bits, weight, dst);
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
