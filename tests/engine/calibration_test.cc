#include "engine/calibration.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
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
  EXPECT_FALSE(fit_line(falling).rate_known);
  const std::array<FitPoint, 2> steep = {FitPoint{.alphas = 1.0, .betas_bytes = 10.0, .us = 1.0},
                                         FitPoint{.alphas = 1.0, .betas_bytes = 20.0, .us = 100.0}};
  EXPECT_EQ(fit_line(steep).alpha_us, 0.0);
}

std::vector<FitPoint> gigabit() {
  std::vector<FitPoint> points;
  for (const double bytes : {1024.0, 16384.0, 65536.0, 262144.0, 1048576.0}) {
    points.push_back({.alphas = 6.0, .betas_bytes = 1.5 * bytes, .us = 6.0 * 50 + 0.012 * bytes});
  }
  return points;
}

TEST(FitLine, OneOutlierAnywhereDoesNotMoveTheRate) {
  const double right = fit_line(gigabit()).gbps();
  EXPECT_NEAR(right, 1.0, 1e-6);
  for (std::size_t i = 0; i < gigabit().size(); ++i) {
    for (const double factor : {0.01, 0.3, 3.0, 100.0}) {
      std::vector<FitPoint> points = gigabit();
      points[i].us *= factor;
      const Line line = fit_line(points);
      EXPECT_TRUE(line.rate_known) << i << " x " << factor;
      EXPECT_NEAR(line.gbps(), right, 0.35 * right) << i << " x " << factor;
    }
  }
}

TEST(FitLine, TimesThatDoNotGrowTellNoRate) {
  std::vector<FitPoint> points = gigabit();
  for (FitPoint& point : points) point.us = 20.0;
  EXPECT_FALSE(fit_line(points).rate_known);
  // Nor does noise around a constant.
  const std::array<double, 5> noisy = {20.0, 22.0, 19.0, 23.0, 20.5};
  for (std::size_t i = 0; i < points.size(); ++i) points[i].us = noisy[i];
  const Line line = fit_line(points);
  EXPECT_FALSE(line.rate_known);
  EXPECT_NEAR(line.alpha_us, 20.5 / 6.0, 0.5);
  // Nor do sizes that are all the same.
  points = gigabit();
  for (FitPoint& point : points) point.betas_bytes = 1024.0;
  EXPECT_FALSE(fit_line(points).rate_known);
}

TEST(FitLine, ZeroTimesOfACoarseClockAreLeftOut) {
  std::vector<FitPoint> points = gigabit();
  points[0].us = 0.0;
  points[1].us = 0.0;
  EXPECT_NEAR(fit_line(points).gbps(), 1.0, 1e-6);
  // A clock with steps of a millisecond.
  points = gigabit();
  for (FitPoint& point : points) point.us = 1000.0 * std::round(point.us / 1000.0);
  EXPECT_NEAR(fit_line(points).gbps(), 1.0, 0.2);
  for (FitPoint& point : points) point.us = 0.0;
  EXPECT_FALSE(fit_line(points).rate_known);
  EXPECT_FALSE(fit_line({}).rate_known);
}

TEST(FitLine, OnePointTellsNoRate) {
  const Line line = fit_line(std::vector<FitPoint>{gigabit().front()});
  EXPECT_FALSE(line.rate_known);
  EXPECT_GT(line.alpha_us, 0.0);
}

TEST(FitLine, StatesTheErrorOfItsRate) {
  EXPECT_NEAR(fit_line(gigabit()).rate_error, 0.0, 1e-9);
  // Times off by a tenth up and down make a rate that is off by some per cent.
  std::vector<FitPoint> points = gigabit();
  for (std::size_t i = 0; i < points.size(); ++i) points[i].us *= i % 2 == 0 ? 1.1 : 0.9;
  const Line noisy = fit_line(points);
  EXPECT_GT(noisy.rate_error, 0.01);
  EXPECT_LT(noisy.rate_error, 0.5);
}

TEST(FitLine, SaysWhereNoLatencyExplainsTheTimes) {
  EXPECT_TRUE(fit_line(gigabit()).latency_known);
  std::vector<FitPoint> points = gigabit();
  for (FitPoint& point : points) point.us = std::max(1e-3, point.us - 400.0);
  EXPECT_FALSE(fit_line(points).latency_known);
}

/// One call of a hundred times the length is a share below 1, not 6000 %.
TEST(FitLine, ErrorsAreSharesWhateverOnePointDoes) {
  for (const double factor : {0.001, 100.0}) {
    std::vector<FitPoint> points = gigabit();
    points[1].us *= factor;
    points.push_back({.alphas = 6.0, .betas_bytes = 1e6, .us = 0.0});
    const auto errors = errors_of(fit_line(points), points);
    ASSERT_EQ(errors.size(), points.size() - 1) << "a time of zero has no error";
    for (const double error : errors) {
      EXPECT_GE(error, 0.0);
      EXPECT_LE(error, 1.0);
    }
  }
}

TEST(Timing, OneLongTurnDoesNotShowInTheSpread) {
  const Timing timing = timing_of({10.0, 11.0, 6000.0, 10.5, 9.5, 10.2, 0.0});
  EXPECT_EQ(timing.median_us, 10.2);
  EXPECT_EQ(timing.most_us, 6000.0);
  EXPECT_EQ(timing.least_us, 0.0);
  EXPECT_LT(timing.spread(), 0.2);
  EXPECT_EQ(timing_of({0.0}).spread(), 0.0);
  EXPECT_EQ(timing_of({5.0}).spread(), 0.0);
  EXPECT_LE(timing_of({0.0, 0.0, 1e6, 1e6}).spread(), 1.0);
}

TEST(FitLine, WhateverWasMeasuredTheLineIsPossible) {
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  const std::array<double, 12> strange = {
      0.0,  -1.0, 1e-300, 1e300, std::numeric_limits<double>::infinity(), std::nan(""),
      1e-9, 1.0,  1000.0, 1e7,   std::numeric_limits<double>::min(),      -0.0};
  const auto any = [&] { return strange[random() % strange.size()]; };
  for (unsigned i = 0; i < 20'000; ++i) {
    std::vector<FitPoint> points(random() % 7);
    for (FitPoint& point : points) {
      point = {.alphas = any(), .betas_bytes = any(), .us = any()};
      if (random() % 2 == 0) point.alphas = 6.0;
      if (random() % 2 == 0) point.betas_bytes = static_cast<double>(random() % 1000000);
    }
    const Line line = fit_line(points);
    ASSERT_TRUE(std::isfinite(line.alpha_us)) << i << ", seed " << kSeed;
    ASSERT_GE(line.alpha_us, 0.0) << i << ", seed " << kSeed;
    ASSERT_TRUE(std::isfinite(line.gbps())) << i << ", seed " << kSeed;
    ASSERT_GT(line.gbps(), 0.0) << i << ", seed " << kSeed;
    ASSERT_LE(line.gbps(), 1.0001 * kMostGbps) << i << ", seed " << kSeed;
  }
}

}  // namespace
}  // namespace gradpress::engine
