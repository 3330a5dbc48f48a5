#include "engine/calibration.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace gradpress::engine {
namespace {

TEST(FitLine, FindsLatencyAndRateThatMadeThePoints) {
  std::vector<FitPoint> points;
  for (const double bytes : {512.0, 65536.0, 4194304.0}) {
    points.push_back(
        {.alphas = 6.0, .betas_bytes = 1.5 * bytes, .us = 6.0 * 50.0 + 1.5 * bytes * 0.01});
  }
  const Line line = fit_line(points);
  EXPECT_NEAR(line.alpha_us, 50.0, 1e-6);
  EXPECT_NEAR(line.beta_us, 0.01, 1e-9);
}

TEST(FitLine, FollowsTheLongCallsWhereShortOnesBend) {
  // Flat up to 64 KiB, then 0.01 us a byte: no line fits both.
  std::vector<FitPoint> points;
  for (const double bytes : {512.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0}) {
    points.push_back(
        {.alphas = 1.0, .betas_bytes = bytes, .us = bytes <= 65536.0 ? 655.36 : 0.01 * bytes});
  }
  const Line line = fit_line(points);
  EXPECT_NEAR(line.alpha_us + line.beta_us * 4194304.0, 41943.04, 0.1 * 41943.04);
}

TEST(FitLine, NeitherPartIsBelowNothing) {
  const std::array<FitPoint, 2> falling = {
      FitPoint{.alphas = 1.0, .betas_bytes = 10.0, .us = 20.0},
      FitPoint{.alphas = 1.0, .betas_bytes = 20.0, .us = 10.0}};
  EXPECT_GT(fit_line(falling).beta_us, 0.0);
  const std::array<FitPoint, 2> steep = {FitPoint{.alphas = 1.0, .betas_bytes = 10.0, .us = 1.0},
                                         FitPoint{.alphas = 1.0, .betas_bytes = 20.0, .us = 100.0}};
  EXPECT_EQ(fit_line(steep).alpha_us, 0.0);
}

TEST(DropHiccups, NoSizeTakesLongerThanALargerOne) {
  std::array<double, 5> times = {5739.0, 1497.0, 1066.0, 1088.0, 3809.0};
  drop_hiccups(times);
  EXPECT_EQ(times, (std::array<double, 5>{1066.0, 1066.0, 1066.0, 1088.0, 3809.0}));
  drop_hiccups(std::span<double>());
}

}  // namespace
}  // namespace gradpress::engine
