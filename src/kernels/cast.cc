#include "kernels/cast.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cast.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/feedback-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

using D16 = hn::Rebind<std::uint16_t, DF>;
using V16 = hn::Vec<D16>;

HWY_INLINE V16 narrow(VU bits) { return hn::DemoteTo(D16(), hn::BitCast(DI(), bits)); }

struct Bfloat16 {
  /// Everything that is not finite unpacks to this magnitude and above, or to NaN.
  static HWY_INLINE VF end() { return hn::BitCast(DF(), hn::Set(DU(), 0x7F800000U)); }

  static HWY_INLINE V16 pack(VF v) {
    const VU bits = hn::BitCast(DU(), v);
    const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DU(), 1));
    return narrow(hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(DU(), 0x7FFFU)))));
  }
  static HWY_INLINE VF unpack(V16 packed) {
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), packed)));
  }
};

// Highway converts to half with the CPU's own instruction, rounding to nearest even, from AVX2 on;
// its emulation elsewhere truncates, so those targets take the integer formulas.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
struct Float16 {
  static HWY_INLINE VF end() { return hn::Set(DF(), 65536.0F); }

  static HWY_INLINE V16 pack(VF v) {
    const VF most = hn::Set(DF(), 65504.0F);
    const VF saturated = hn::Max(hn::Min(v, most), hn::Neg(most));
    return hn::BitCast(D16(), hn::DemoteTo(hn::Rebind<hwy::float16_t, DF>(), saturated));
  }
  static HWY_INLINE VF unpack(V16 packed) {
    return hn::PromoteTo(DF(), hn::BitCast(hn::Rebind<hwy::float16_t, DF>(), packed));
  }
};
#else
struct Float16 {
  static HWY_INLINE VF end() { return hn::Set(DF(), 65536.0F); }

  static HWY_INLINE V16 pack(VF v) {
    const DF d;
    const DU du;
    const VF magnitude = hn::Min(hn::Abs(v), hn::Set(d, 65504.0F));
    const VU bits = hn::BitCast(du, magnitude);
    // Normal: round the 13 bits that go, then move the exponent's bias from 127 to 15.
    const VU odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1));
    const VU rebias = hn::Set(du, 0xFFFU - (112U << 23));
    const VU normal = hn::ShiftRight<13>(hn::Add(bits, hn::Add(odd, rebias)));
    // Below 2^-14 the half is subnormal, a multiple of 2^-24, which is 0.5's last place: the
    // addition itself rounds to nearest even.
    const VF half = hn::Set(d, 0.5F);
    const VU tiny = hn::Sub(hn::BitCast(du, hn::Add(magnitude, half)), hn::BitCast(du, half));
    const MF is_tiny = hn::Lt(magnitude, hn::Set(d, 0x1.0p-14F));
    const VU packed =
        hn::BitCast(du, hn::IfThenElse(is_tiny, hn::BitCast(d, tiny), hn::BitCast(d, normal)));
    const VU sign = hn::ShiftLeft<15>(hn::ShiftRight<31>(hn::BitCast(du, v)));
    return narrow(hn::Or(packed, sign));
  }
  static HWY_INLINE VF unpack(V16 packed) {
    const DU du;
    const VU bits = hn::PromoteTo(du, packed);
    const VU magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFFU)));
    // Exact for subnormals too; infinities and NaN come out at 65536 and above.
    const VF value = hn::Mul(hn::BitCast(DF(), magnitude), hn::Set(DF(), 0x1.0p112F));
    const VU sign = hn::ShiftLeft<31>(hn::ShiftRight<15>(bits));
    return hn::Or(value, hn::BitCast(DF(), sign));
  }
};
#endif

template <class Format, bool kFeedback>
struct CastPass {
  RangeGuard guard;
  std::uint8_t* out;

  HWY_INLINE void group(const float* g, RenewedAt x, std::size_t at, std::size_t count) {
    if (count == kGroup) return pack(g, x, out + 2 * at);
    std::uint8_t padded[2 * kGroup];
    pack(g, x, padded);
    std::memcpy(out + 2 * at, padded, 2 * count);
  }

  HWY_INLINE void pack(const float* g, RenewedAt x, std::uint8_t* to) {
    for (std::size_t p = 0; p < kGroup; p += kLanes) {
      const VF v = load_x<kFeedback>(guard, g + p, kFeedback ? x.from + p : nullptr);
      const V16 packed = Format::pack(v);
      store_bytes(D16(), packed, to + 2 * p);
      if constexpr (kFeedback)
        store_kept(hn::Sub(v, Format::unpack(packed)), x.to + p, x.past_caches);
    }
  }
};

template <class Format>
HWY_INLINE bool encode_cast(const FeedbackPass& from, std::uint8_t* out) {
  const auto run = [&]<bool kFeedback>(CastPass<Format, kFeedback> pass) HWY_ATTR {
    each_group<kFeedback, true>(from.g.data(), from.kept(), from.g.size(), pass);
    return pass.guard.all_in_range();
  };
  return from.has_feedback() ? run(CastPass<Format, true>{RangeGuard(from.limit), out})
                             : run(CastPass<Format, false>{RangeGuard(from.limit), out});
}

template <class Format>
struct CastAdd {
  RangeGuard guard;
  VF weight;
  const std::uint8_t* in;

  HWY_INLINE void group(float* dst, std::size_t at, std::size_t count) {
    if (count == kGroup) return add(in + 2 * at, dst);
    std::uint8_t padded[2 * kGroup] = {};
    std::memcpy(padded, in + 2 * at, 2 * count);
    add(padded, dst);
  }

  HWY_INLINE void add(const std::uint8_t* from, float* dst) {
    for (std::size_t p = 0; p < kGroup; p += kLanes) {
      const VF value = guard.take(Format::unpack(load_bytes(D16(), from + 2 * p)));
      const VF old = hn::LoadU(DF(), dst + p);
      hn::StoreU(hn::Add(old, hn::Mul(value, weight)), DF(), dst + p);
    }
  }
};

template <class Format>
HWY_INLINE bool add_cast(const std::uint8_t* in, float weight, float* dst, std::size_t n) {
  CastAdd<Format> add{RangeGuard(0.0F), hn::Set(DF(), weight), in};
  add.guard.bound = Format::end();
  each_group_of(dst, n, add);
  return add.guard.all_in_range();
}

bool encode_fp16_kernel(const FeedbackPass& from, std::uint8_t* out) {
  return encode_cast<Float16>(from, out);
}
bool encode_bf16_kernel(const FeedbackPass& from, std::uint8_t* out) {
  return encode_cast<Bfloat16>(from, out);
}
bool add_fp16_kernel(const std::uint8_t* in, float weight, float* dst, std::size_t n) {
  return add_cast<Float16>(in, weight, dst, n);
}
bool add_bf16_kernel(const std::uint8_t* in, float weight, float* dst, std::size_t n) {
  return add_cast<Bfloat16>(in, weight, dst, n);
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(encode_fp16_kernel);
HWY_EXPORT(encode_bf16_kernel);
HWY_EXPORT(add_fp16_kernel);
HWY_EXPORT(add_bf16_kernel);

namespace {
std::uint8_t* raw(std::span<std::byte> bytes) {
  return reinterpret_cast<std::uint8_t*>(bytes.data());
}
const std::uint8_t* raw(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}
}  // namespace

bool encode_fp16(const FeedbackPass& pass, std::span<std::byte> out) {
  return HWY_DYNAMIC_DISPATCH(encode_fp16_kernel)(pass, raw(out));
}
bool encode_bf16(const FeedbackPass& pass, std::span<std::byte> out) {
  return HWY_DYNAMIC_DISPATCH(encode_bf16_kernel)(pass, raw(out));
}
bool add_fp16(std::span<const std::byte> in, float weight, std::span<float> dst) {
  return HWY_DYNAMIC_DISPATCH(add_fp16_kernel)(raw(in), weight, dst.data(), dst.size());
}
bool add_bf16(std::span<const std::byte> in, float weight, std::span<float> dst) {
  return HWY_DYNAMIC_DISPATCH(add_bf16_kernel)(raw(in), weight, dst.data(), dst.size());
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
