#include "kernels/momentum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/momentum.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

/// New momentum and what is to be encoded, of one vector.
struct MomentumStep {
  VF momentum, scale;
  bool nesterov;

  HWY_INLINE explicit MomentumStep(const MomentumArgs& args)
      : momentum(hn::Set(DF(), args.momentum)),
        scale(hn::Set(DF(), args.grad_scale)),
        nesterov(args.nesterov) {}

  HWY_INLINE void operator()(VF g, VF& u, VF& sum) const {
    const VF s = hn::Mul(scale, g);
    if (nesterov) {
      u = hn::Mul(momentum, hn::Add(u, s));
      sum = hn::Add(u, s);
    } else {
      u = hn::Add(hn::Mul(momentum, u), s);
      sum = u;
    }
  }
};

bool momentum_in_range_kernel(const float* g, const float* u, std::size_t n,
                              const MomentumArgs& args, float limit) {
  const DF d;
  const MomentumStep step(args);
  const VF bound = hn::Set(d, limit);
  MF fine = hn::FirstN(d, kLanes);
  const auto take = [&](const float* g_part, const float* u_part) HWY_ATTR {
    const VF raw = hn::LoadU(d, g_part);
    VF next = hn::LoadU(d, u_part);
    VF sum = hn::Zero(d);
    step(raw, next, sum);
    fine = hn::And(fine, hn::Lt(hn::Abs(raw), bound));
    fine = hn::And(fine, hn::Lt(hn::Abs(next), bound));
    fine = hn::And(fine, hn::Lt(hn::Abs(sum), bound));
  };
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) take(g + i, u + i);
  if (i < n) {
    const PaddedTail tail_g(g + i, n - i);
    const PaddedTail tail_u(u + i, n - i);
    take(tail_g.values, tail_u.values);
  }
  return hn::AllTrue(d, fine);
}

void update_momentum_kernel(const float* g, float* u, std::size_t n, const MomentumArgs& args,
                            float* sum) {
  const DF d;
  const MomentumStep step(args);
  const auto take = [&](const float* g_part, float* u_part, float* sum_part) HWY_ATTR {
    VF next = hn::LoadU(d, u_part);
    VF both = hn::Zero(d);
    step(hn::LoadU(d, g_part), next, both);
    hn::StoreU(next, d, u_part);
    if (args.nesterov) hn::StoreU(both, d, sum_part);
  };
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) take(g + i, u + i, args.nesterov ? sum + i : nullptr);
  if (i < n) {
    const PaddedTail tail_g(g + i, n - i);
    PaddedTail tail_u(u + i, n - i);
    PaddedTail tail_sum(g, 0);
    take(tail_g.values, tail_u.values, tail_sum.values);
    std::memcpy(u + i, tail_u.values, (n - i) * sizeof(float));
    if (args.nesterov) std::memcpy(sum + i, tail_sum.values, (n - i) * sizeof(float));
  }
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(momentum_in_range_kernel);
HWY_EXPORT(update_momentum_kernel);

bool momentum_in_range(std::span<const float> g, std::span<const float> u, const MomentumArgs& args,
                       float limit) {
  return HWY_DYNAMIC_DISPATCH(momentum_in_range_kernel)(g.data(), u.data(), g.size(), args, limit);
}
void update_momentum(std::span<const float> g, std::span<float> u, const MomentumArgs& args,
                     std::span<float> sum) {
  HWY_DYNAMIC_DISPATCH(update_momentum_kernel)(g.data(), u.data(), g.size(), args, sum.data());
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
