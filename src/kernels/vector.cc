#include "kernels/vector.h"

#include <hwy/cache_control.h>

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vector.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

/// dst[i] = op(dst[i], src[i]) over whole vectors, `tail` for the rest.
template <class VectorOp, class ScalarOp>
HWY_INLINE void update(float* dst, const float* src, std::size_t n, VectorOp op, ScalarOp tail) {
  const DF d;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(op(hn::LoadU(d, dst + i), hn::LoadU(d, src + i)), d, dst + i);
  }
  for (; i < n; ++i) dst[i] = tail(dst[i], src[i]);
}

void add_kernel(float* dst, const float* src, std::size_t n) {
  update(
      dst, src, n, [](VF a, VF b) HWY_ATTR { return hn::Add(a, b); },
      [](float a, float b) { return a + b; });
}

void add_weighted_kernel(const std::byte* bytes, float weight, float* dst, std::size_t n) {
  const DF d;
  const VF w = hn::Set(d, weight);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF values = load_bytes(bytes + i * sizeof(float));
    hn::StoreU(hn::Add(hn::LoadU(d, dst + i), hn::Mul(values, w)), d, dst + i);
  }
  for (; i < n; ++i) {
    float value;
    std::memcpy(&value, bytes + i * sizeof value, sizeof value);
    dst[i] += value * weight;
  }
}

void scale_kernel(float* values, std::size_t n, float factor) {
  const VF f = hn::Set(DF(), factor);
  update(
      values, values, n, [f](VF a, VF) HWY_ATTR { return hn::Mul(a, f); },
      [factor](float a, float) { return a * factor; });
}

bool scale_into_kernel(const float* from, float factor, float* to, std::size_t n) {
  const DF d;
  const VF f = hn::Set(d, factor);
  // 0 · v is 0 for finite v and NaN for all others, and NaN stays in a sum.
  VF worst = hn::Zero(d);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF v = hn::Mul(hn::LoadU(d, from + i), f);
    hn::StoreU(v, d, to + i);
    worst = hn::Add(worst, hn::Mul(v, hn::Zero(d)));
  }
  bool finite = hn::AllTrue(d, hn::Eq(worst, worst));
  for (; i < n; ++i) {
    to[i] = from[i] * factor;
    finite = finite && std::isfinite(to[i]);
  }
  return finite;
}

void take_signs_kernel(float* values, std::size_t n) {
  const VF plus = hn::Set(DF(), 1.0F);
  const VF minus = hn::Set(DF(), -1.0F);
  update(
      values, values, n,
      [plus, minus](VF a, VF) HWY_ATTR {
        const VF zero = hn::Zero(DF());
        return hn::Or(hn::IfThenElseZero(hn::Lt(zero, a), plus),
                      hn::IfThenElseZero(hn::Lt(a, zero), minus));
      },
      [](float a, float) { return a < 0.0F ? -1.0F : (a > 0.0F ? 1.0F : 0.0F); });
}

double sum_squares_kernel(const float* values, std::size_t n) {
  const DF d;
  double total = 0.0;
  for (std::size_t begin = 0; begin < n; begin += kSumBlock) {
    const std::size_t count = n - begin < kSumBlock ? n - begin : kSumBlock;
    LaneSums sums;
    std::size_t i = 0;
    for (; i + kGroup <= count; i += kGroup) {
      for (std::size_t p = 0; p < kParts; ++p) {
        const VF v = hn::LoadU(d, values + begin + i + p * kLanes);
        sums.add(p, hn::Mul(v, v));
      }
    }
    if (i < count) {
      const PaddedTail tail(values + begin + i, count - i);
      for (std::size_t p = 0; p < kParts; ++p) {
        const VF v = hn::Load(d, tail.values + p * kLanes);
        sums.add(p, hn::Mul(v, v));
      }
    }
    total += sums.total();
  }
  return total;
}

std::size_t first_out_of_range_kernel(const float* values, std::size_t n, float limit) {
  const DF d;
  const VF bound = hn::Set(d, limit);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if (!hn::AllTrue(d, hn::Lt(hn::Abs(hn::LoadU(d, values + i)), bound))) break;
  }
  for (; i < n; ++i) {
    if (!(std::fabs(values[i]) < limit)) return i;
  }
  return kAllInRange;
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(add_kernel);
HWY_EXPORT(add_weighted_kernel);
HWY_EXPORT(scale_kernel);
HWY_EXPORT(scale_into_kernel);
HWY_EXPORT(take_signs_kernel);
HWY_EXPORT(sum_squares_kernel);
HWY_EXPORT(first_out_of_range_kernel);

void add(std::span<float> dst, std::span<const float> src) {
  HWY_DYNAMIC_DISPATCH(add_kernel)(dst.data(), src.data(), dst.size());
}
void add_weighted(std::span<const std::byte> bytes, float weight, std::span<float> dst) {
  HWY_DYNAMIC_DISPATCH(add_weighted_kernel)(bytes.data(), weight, dst.data(), dst.size());
}
void scale(std::span<float> values, float factor) {
  HWY_DYNAMIC_DISPATCH(scale_kernel)(values.data(), values.size(), factor);
}
double sum_squares(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(sum_squares_kernel)(values.data(), values.size());
}
std::size_t first_out_of_range(std::span<const float> values, float limit) {
  return HWY_DYNAMIC_DISPATCH(first_out_of_range_kernel)(values.data(), values.size(), limit);
}
bool scale_into(std::span<const float> from, float factor, std::span<float> to) {
  return HWY_DYNAMIC_DISPATCH(scale_into_kernel)(from.data(), factor, to.data(), to.size());
}
void flush_stores() { hwy::FlushStream(); }
void take_signs(std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(take_signs_kernel)(values.data(), values.size());
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
