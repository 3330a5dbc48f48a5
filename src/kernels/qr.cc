#include "kernels/qr.h"

#include <algorithm>
#include <array>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/qr.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

/// Columns that meet a reflector together, so that it is loaded once for all of them.
inline constexpr std::size_t kTogether = 4;
/// Columns are scaled to a largest element of 1 to 2. What is left of one below the diagonal with
/// squares below this is rounding noise: it is taken as zero before its squares lose their bits.
inline constexpr double kNoise = 0x1.0p-80;

float largest_magnitude(const float* values, std::size_t n) {
  const DF d;
  VF largest = hn::Zero(d);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, values + i)));
  }
  float most = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < n; ++i) most = std::max(most, std::fabs(values[i]));
  return most;
}

void multiply(float* values, std::size_t n, float factor) {
  const DF d;
  const VF f = hn::Set(d, factor);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, values + i), f), d, values + i);
  }
  for (; i < n; ++i) values[i] *= factor;
}

/// By a power of two, which changes R alone: no square can then overflow or vanish.
void scale_to_one_kernel(float* column, std::size_t n) {
  const float most = largest_magnitude(column, n);
  if (most == 0.0F) return;
  // Denormals need more than one factor's range.
  for (int exponent = -std::ilogb(most); exponent != 0;) {
    const int part = std::clamp(exponent, -100, 100);
    multiply(column, n, std::ldexp(1.0F, part));
    exponent -= part;
  }
}

/// products[c] = Σ v · (column c), for kCount columns `stride` apart.
template <std::size_t kCount>
HWY_INLINE void dot(const float* v, const float* columns, std::size_t stride, std::size_t n,
                    double* products) {
  const DF d;
  for (std::size_t c = 0; c < kCount; ++c) products[c] = 0.0;
  for (std::size_t begin = 0; begin < n; begin += kSumBlock) {
    const std::size_t end = std::min(n, begin + kSumBlock);
    LaneSums sums[kCount];
    std::size_t i = begin;
    for (; i + kGroup <= end; i += kGroup) {
      for (std::size_t p = 0; p < kParts; ++p) {
        const VF x = hn::LoadU(d, v + i + p * kLanes);
        for (std::size_t c = 0; c < kCount; ++c) {
          sums[c].add(p, hn::Mul(x, hn::LoadU(d, columns + c * stride + i + p * kLanes)));
        }
      }
    }
    if (i < end) {
      const PaddedTail tail_v(v + i, end - i);
      for (std::size_t c = 0; c < kCount; ++c) {
        const PaddedTail tail(columns + c * stride + i, end - i);
        for (std::size_t p = 0; p < kParts; ++p) {
          sums[c].add(p, hn::Mul(hn::Load(d, tail_v.values + p * kLanes),
                                 hn::Load(d, tail.values + p * kLanes)));
        }
      }
    }
    for (std::size_t c = 0; c < kCount; ++c) products[c] += sums[c].total();
  }
}

/// kCount columns ← (I − tau v vᵀ) columns.
template <std::size_t kCount>
HWY_INLINE void reflect(const float* v, double tau, float* columns, std::size_t stride,
                        std::size_t n) {
  const DF d;
  double products[kCount];
  dot<kCount>(v, columns, stride, n, products);
  float factor[kCount];
  for (std::size_t c = 0; c < kCount; ++c) factor[c] = static_cast<float>(tau * products[c]);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF x = hn::LoadU(d, v + i);
    for (std::size_t c = 0; c < kCount; ++c) {
      float* const at = columns + c * stride + i;
      hn::StoreU(hn::Sub(hn::LoadU(d, at), hn::Mul(hn::Set(d, factor[c]), x)), d, at);
    }
  }
  for (; i < n; ++i) {
    for (std::size_t c = 0; c < kCount; ++c) columns[c * stride + i] -= factor[c] * v[i];
  }
}

void reflect_all(const float* v, double tau, float* columns, std::size_t count, std::size_t stride,
                 std::size_t n) {
  std::size_t c = 0;
  for (; c + kTogether <= count; c += kTogether) {
    reflect<kTogether>(v, tau, columns + c * stride, stride, n);
  }
  for (; c < count; ++c) reflect<1>(v, tau, columns + c * stride, stride, n);
}

/// Turns x into the v of the reflector that takes x to a multiple of its first axis. Returns its
/// tau = 2 / vᵀv, or 0 for no reflection at all.
double make_reflector(float* x, std::size_t n) {
  double squares = 0.0;
  dot<1>(x, x, 0, n, &squares);
  if (!(squares >= kNoise)) return 0.0;
  const auto first = static_cast<double>(x[0]);
  // Away from zero, so that nothing cancels.
  x[0] = static_cast<float>(first + std::copysign(std::sqrt(squares), first));
  const auto moved = static_cast<double>(x[0]);
  return 2.0 / (squares - first * first + moved * moved);
}

void orthonormalise_kernel(float* factor, std::size_t length, std::size_t columns) {
  std::array<double, kMaxFactorColumns> tau;
  for (std::size_t k = 0; k < columns; ++k) scale_to_one_kernel(factor + k * length, length);
  for (std::size_t k = 0; k < columns; ++k) {
    float* const v = factor + k * length + k;
    tau[k] = make_reflector(v, length - k);
    if (tau[k] == 0.0) continue;
    reflect_all(v, tau[k], v + length, columns - k - 1, length, length - k);
  }
  // The reflectors, last first, applied to the identity's columns, each built where its v stood.
  for (std::size_t k = columns; k-- > 0;) {
    float* const column = factor + k * length;
    float* const v = column + k;
    if (tau[k] != 0.0) {
      reflect_all(v, tau[k], v + length, columns - k - 1, length, length - k);
    }
    multiply(v, length - k, static_cast<float>(-tau[k] * static_cast<double>(v[0])));
    v[0] += 1.0F;
    std::fill(column, v, 0.0F);
  }
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(orthonormalise_kernel);
HWY_EXPORT(scale_to_one_kernel);

void orthonormalise(std::span<float> factor, std::size_t length, std::size_t columns) {
  HWY_DYNAMIC_DISPATCH(orthonormalise_kernel)(factor.data(), length, columns);
}

void scale_to_one(std::span<float> values) {
  HWY_DYNAMIC_DISPATCH(scale_to_one_kernel)(values.data(), values.size());
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
