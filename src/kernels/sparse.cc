#include "kernels/sparse.h"

#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

bool add_in_range_kernel(const float* g, RenewedAt x, std::size_t n, float limit) {
  const DF d;
  const VF bound = hn::Set(d, limit);
  const bool past_caches = streams(x);
  VF worst = hn::Zero(d);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    ask_ahead(g + i);
    ask_ahead(x.from + i);
    const VF raw = hn::LoadU(d, g + i);
    const MF fine = hn::Lt(hn::Abs(raw), bound);
    worst = hn::Or(worst, hn::IfThenZeroElse(fine, hn::Set(d, -1.0F)));
    store_kept(hn::Add(hn::IfThenElseZero(fine, raw), hn::LoadU(d, x.from + i)), x.to + i,
               past_caches);
  }
  bool fine = hn::AllTrue(d, hn::Eq(worst, hn::Zero(d)));
  for (; i < n; ++i) {
    const bool good = std::fabs(g[i]) < limit;
    fine = fine && good;
    x.to[i] = (good ? g[i] : 0.0F) + x.from[i];
  }
  return fine;
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(add_in_range_kernel);

namespace {

template <class T>
T word_at(std::span<const std::byte> bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
  return value;
}

/// Entries lie far apart: their cache lines are asked for this many entries ahead.
constexpr std::size_t kAhead = 24;

/// visit(entry number, reference to the element) over all indices.
template <class Visit>
void scatter(std::span<const std::byte> indices, std::span<float> to, Visit visit) {
  const std::size_t count = indices.size() / sizeof(std::uint32_t);
  std::size_t i = 0;
  for (; i + kAhead < count; ++i) {
    prefetch(to.data() + word_at<std::uint32_t>(indices, i + kAhead));
    visit(i, to[word_at<std::uint32_t>(indices, i)]);
  }
  for (; i < count; ++i) visit(i, to[word_at<std::uint32_t>(indices, i)]);
}

}  // namespace

bool add_in_range(std::span<const float> g, const Renewal& x, float limit) {
  return HWY_DYNAMIC_DISPATCH(add_in_range_kernel)(g.data(), pointers(x), g.size(), limit);
}

bool indices_valid(std::span<const std::byte> indices, std::uint64_t n) {
  const std::size_t count = indices.size() / sizeof(std::uint32_t);
  if (count == 0) return true;
  bool ascending = true;
  for (std::size_t i = 1; i < count; ++i) {
    ascending &= word_at<std::uint32_t>(indices, i - 1) < word_at<std::uint32_t>(indices, i);
  }
  return ascending && word_at<std::uint32_t>(indices, count - 1) < n;
}

bool values_finite(std::span<const std::byte> values) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  const std::size_t count = values.size() / sizeof(float);
  bool finite = true;
  for (std::size_t i = 0; i < count; ++i) {
    finite &= (word_at<std::uint32_t>(values, i) & kExponent) != kExponent;
  }
  return finite;
}

void scatter_add(std::span<const std::byte> indices, std::span<const std::byte> values,
                 float weight, std::span<float> dst) {
  scatter(indices, dst,
          [&](std::size_t i, float& to) { to += word_at<float>(values, i) * weight; });
}
void scatter_add(std::span<const std::byte> indices, float value, std::span<float> dst) {
  scatter(indices, dst, [value](std::size_t, float& to) { to += value; });
}
void scatter_zero(std::span<const std::byte> indices, std::span<float> values) {
  scatter(indices, values, [](std::size_t, float& to) { to = 0.0F; });
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
