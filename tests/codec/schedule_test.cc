#include "codec/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gradpress::codec {
namespace {

double ratio_at(const Schedule& schedule, std::uint64_t epoch) {
  return parse_spec(schedule.codec_at(epoch)).value().ratio;
}

TEST(ScheduleTest, FallsExponentiallyAsDgcDoes) {
  const auto schedule = Schedule::make("dgc:0.001", {.falling_epochs = 5, .ratios = {}}).value();
  const double want[] = {0.316, 0.1, 0.0316, 0.01, 0.0032, 0.001, 0.001};
  for (std::uint64_t epoch = 0; epoch < 7; ++epoch) {
    EXPECT_NEAR(ratio_at(schedule, epoch) / want[epoch], 1.0, 0.015) << epoch;
    EXPECT_TRUE(schedule.codec_at(epoch).starts_with("dgc:")) << epoch;
  }
  EXPECT_EQ(schedule.codec_at(5), "dgc:0.001");
  EXPECT_EQ(schedule.codec_at(1'000'000), "dgc:0.001");
  EXPECT_EQ(schedule.warm_epochs(), 5U);
}

TEST(ScheduleTest, DenseEpochsComeFirst) {
  const auto schedule = Schedule::make("redsync:0.001:reuse=7",
                                       {.dense_epochs = 2, .falling_epochs = 1, .ratios = {}})
                            .value();
  EXPECT_EQ(schedule.codec_at(0), "none");
  EXPECT_EQ(schedule.codec_at(1), "none");
  EXPECT_NEAR(ratio_at(schedule, 2), std::sqrt(0.001), 1e-12);
  EXPECT_EQ(schedule.codec_at(3), "redsync:0.001:reuse=7");
}

TEST(ScheduleTest, AListIsTakenAsItIsAndOneIsDense) {
  const auto schedule = Schedule::make("topk:0.01", {.ratios = {1.0, 0.25, 0.05}}).value();
  EXPECT_EQ(schedule.codec_at(0), "none");
  EXPECT_EQ(schedule.codec_at(1), "topk:0.25");
  EXPECT_EQ(schedule.codec_at(2), "topk:0.05");
  EXPECT_EQ(schedule.codec_at(3), "topk:0.01");
}

TEST(ScheduleTest, WithoutWarmUpEveryEpochIsTheSame) {
  EXPECT_EQ(Schedule::make("randomk:0.5", {}).value().codec_at(0), "randomk:0.5");
}

TEST(ScheduleTest, RefusesWhatHasNoRatioOrTwoWays) {
  EXPECT_FALSE(Schedule::make("efsign", {}).has_value());
  EXPECT_FALSE(Schedule::make("topk", {}).has_value());
  EXPECT_FALSE(Schedule::make("topk:0.01", {.falling_epochs = 1, .ratios = {0.5}}).has_value());
  for (const double bad : {0.0, -1.0, 1.5, std::nan("")}) {
    EXPECT_FALSE(Schedule::make("topk:0.01", {.ratios = {bad}}).has_value()) << bad;
  }
}

}  // namespace
}  // namespace gradpress::codec
