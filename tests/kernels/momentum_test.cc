#include "kernels/momentum.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "support/gradient.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

constexpr float kLimit = 1e17F;

class Momentum : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(Momentum);

TEST_P(Momentum, UpdateAgreesWithScalarOnEveryTail) {
  for (std::size_t n = 0; n <= 67; ++n) {
    for (const bool nesterov : {false, true}) {
      const MomentumArgs args{.momentum = 0.9F, .grad_scale = 0.7F, .nesterov = nesterov};
      const auto g = test::gradient(n + 1, n);
      auto u = test::gradient(n + 2, n + 5);
      const auto before = u;
      std::vector<float> sum(n + 2, 7.0F);
      update_momentum(std::span(g).subspan(1), std::span(u).subspan(1, n), args,
                      nesterov ? std::span(sum).subspan(1, n) : std::span<float>());
      for (std::size_t i = 1; i <= n; ++i) {
        const float s = 0.7F * g[i];
        const float want = nesterov ? 0.9F * (before[i] + s) : 0.9F * before[i] + s;
        ASSERT_EQ(u[i], want) << "n=" << n << " i=" << i;
        ASSERT_EQ(sum[i], nesterov ? want + s : 7.0F);
      }
      EXPECT_EQ(u[0], before[0]);
      EXPECT_EQ(u.back(), before.back());
      EXPECT_EQ(sum.front(), 7.0F);
      EXPECT_EQ(sum.back(), 7.0F);
    }
  }
}

TEST_P(Momentum, NothingOutOfRangeGoesUnseenOnAnyTail) {
  const MomentumArgs args{.momentum = 0.9F};
  for (std::size_t n = 1; n <= 35; ++n) {
    const auto g = test::gradient(n, n);
    const auto u = test::gradient(n, n + 5);
    EXPECT_TRUE(momentum_in_range(g, u, args, kLimit));
    for (std::size_t at = 0; at < n; ++at) {
      auto bad_g = g;
      bad_g[at] = std::numeric_limits<float>::quiet_NaN();
      EXPECT_FALSE(momentum_in_range(bad_g, u, args, kLimit));
      bad_g[at] = -kLimit;
      EXPECT_FALSE(momentum_in_range(bad_g, u, args, kLimit));
      // In range by itself, but not with the momentum there is.
      bad_g[at] = 0.5F * kLimit;
      auto large_u = u;
      large_u[at] = 0.9F * kLimit;
      EXPECT_TRUE(momentum_in_range(bad_g, u, args, kLimit));
      EXPECT_FALSE(momentum_in_range(bad_g, large_u, args, kLimit));
    }
  }
}

}  // namespace
}  // namespace gradpress::kernels
