// The autopilot's decisions, from numbers that a test makes up.
#include "engine/autopilot.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gradpress::engine {
namespace {

class FakeHost final : public AutoHost {
 public:
  double raw_us = 100.0;
  double plan_us = 40.0;
  AutoPlan next = {.compresses = true, .raw_us = 90.0, .verdict = "compress all"};
  bool profile_fits = false;
  unsigned slices = 3;  ///< that a profile takes
  bool planner_fails = false;

  bool runs_plan = false;  ///< or a codec in its place
  std::string runs_codec;
  double codec_us = 50.0;
  unsigned plans = 0;
  unsigned profiles = 0;
  unsigned reused = 0;
  unsigned left = 0;
  double slices_for_us = 0.0;
  double longest_slice_us = 0.0;
  std::vector<std::string> lines;

  Result<double> slowest(double mine) override { return mine; }
  void record(unsigned /*steps*/) override {}
  Result<bool> begin_profile(bool may_reuse, double step_us) override {
    slices_for_us = step_us;
    if (profile_fits && may_reuse) {
      ++reused;
      return true;
    }
    ++profiles;
    left = slices;
    return false;
  }
  Result<bool> continue_profile(double budget_us) override {
    longest_slice_us = std::max(longest_slice_us, budget_us);
    return --left == 0;
  }
  Result<AutoPlan> make_plan() override {
    if (planner_fails) return fail(Code::kInvalidArgument, "too many codecs");
    ++plans;
    return next;
  }
  Status run_plan(const gradpress::Plan& /*plan*/) override {
    runs_plan = true;
    runs_codec.clear();
    return {};
  }
  Status run_codec(const std::string& codec) override {
    runs_codec = codec;
    return {};
  }
  Status run_raw() override {
    runs_plan = false;
    runs_codec.clear();
    return {};
  }
  void say(const std::string& line) override { lines.push_back(line); }
};

struct Flight {
  FakeHost host;
  Autopilot pilot;
  explicit Flight(AutoOptions options = {}) : pilot(short_phases(std::move(options)), host) {
    pilot.start();
  }

  static AutoOptions short_phases(AutoOptions options) {
    options.raw_steps = 4;
    options.window = 5;
    options.drift_interval = 20;
    options.drift_factor = 1.3;
    return options;
  }

  void fly(unsigned steps) {
    for (unsigned i = 0; i < steps; ++i) {
      const double of_plan = host.runs_codec.empty() ? host.plan_us : host.codec_us;
      ASSERT_TRUE(pilot.after_step(host.runs_plan ? of_plan : host.raw_us).is_ok());
    }
  }
  bool said(std::string_view words) const {
    return std::ranges::any_of(
        host.lines, [&](const std::string& line) { return line.find(words) != std::string::npos; });
  }
};

TEST(Autopilot, KeepsAPlanThatIsFaster) {
  Flight flight;
  flight.fly(4 + 1);
  EXPECT_EQ(flight.host.slices_for_us, 100.0) << "slices are cut to a raw step";
  EXPECT_FALSE(flight.host.runs_plan) << "nothing is decided before links are measured";
  flight.fly(3);
  EXPECT_TRUE(flight.host.runs_plan);
  flight.fly(5 + 1);
  EXPECT_TRUE(flight.host.runs_plan);
  EXPECT_TRUE(flight.said("stays with the plan"));
  flight.fly(100);
  EXPECT_EQ(flight.host.plans, 1U);
  EXPECT_EQ(flight.host.lines.size(), 2U);
}

TEST(Autopilot, EachCodecOfThePlanIsTriedForAllTensorsAndTheFastestStays) {
  struct Case {
    double first_us, second_us;
    std::string stays;
  };
  const std::vector<Case> cases = {
      {50.0, 60.0, ""}, {30.0, 60.0, "efsign"}, {30.0, 20.0, "acpsgd:4"}, {60.0, 30.0, "acpsgd:4"}};
  for (const Case& one : cases) {
    Flight flight;
    flight.host.next.codecs = {"efsign", "acpsgd:4"};
    flight.host.codec_us = one.first_us;
    flight.fly(4 + 1 + 3 + 5 + 1);
    EXPECT_EQ(flight.host.runs_codec, "efsign");
    flight.fly(5 + 1);
    EXPECT_EQ(flight.host.runs_codec, "acpsgd:4");
    flight.host.codec_us = one.second_us;
    flight.fly(5 + 1);
    EXPECT_TRUE(flight.host.runs_plan);
    EXPECT_EQ(flight.host.runs_codec, one.stays);
    EXPECT_EQ(flight.pilot.state().find("for all tensors") == std::string::npos, one.stays.empty())
        << flight.pilot.state();
  }
}

TEST(Autopilot, APlanMustAlsoBeatTheCallersOwnWay) {
  for (const double other_us : {0.0, 30.0, 45.0, 500.0}) {
    Flight flight({.other_raw_us = [other_us] { return other_us; }});
    flight.fly(4 + 1 + 3 + 5 + 1);
    const bool loses = other_us == 30.0;  // where raw steps take 100 and the plan's 40
    EXPECT_EQ(flight.host.runs_plan, !loses) << other_us;
    EXPECT_EQ(flight.said("the plan was no gain, 0.04 ms a step, raw took 0.03 ms"), loses);
    flight.fly(1);
    EXPECT_EQ(flight.pilot.rests(), loses);
    // Raw steps that take what they took before are no drift, whatever the other way takes.
    flight.fly(60);
    EXPECT_EQ(flight.host.profiles, 1U) << other_us;
  }
}

TEST(Autopilot, NeitherPlanNorCodecsFasterThanRawLeaveRaw) {
  Flight flight;
  flight.host.next.codecs = {"acpsgd:4"};
  flight.host.plan_us = 120.0;
  flight.host.codec_us = 110.0;
  flight.fly(4 + 1 + 3 + 2 * (5 + 1));
  EXPECT_FALSE(flight.host.runs_plan);
  EXPECT_TRUE(flight.said("no gain"));
}

TEST(Autopilot, LongStepsAreWatchedForAFewOnly) {
  Flight flight;
  flight.host.raw_us = 2e6;
  flight.fly(3 + 1);
  EXPECT_EQ(flight.host.profiles, 1U);
}

TEST(Autopilot, FallsBackWhereThePlanIsNoGainAndSaysWhy) {
  Flight flight;
  flight.host.plan_us = 120.0;
  flight.fly(4 + 1 + 3 + 5 + 1);
  EXPECT_FALSE(flight.host.runs_plan);
  EXPECT_TRUE(flight.said("no gain")) << flight.host.lines.back();
  EXPECT_TRUE(flight.said("0.12 ms a step, raw took 0.10 ms")) << flight.host.lines.back();
  flight.fly(100);
  EXPECT_FALSE(flight.host.runs_plan);
}

TEST(Autopilot, DoesNotCompressWhereThePlannerSeesNoGain) {
  Flight flight;
  flight.host.next = {.compresses = false, .raw_us = 90.0, .verdict = "do not compress: fast link"};
  flight.fly(4 + 1);
  EXPECT_FALSE(flight.pilot.rests());
  flight.fly(200);
  EXPECT_TRUE(flight.pilot.rests());
  EXPECT_FALSE(flight.host.runs_plan);
  EXPECT_EQ(flight.host.lines.size(), 1U);
  EXPECT_NE(flight.pilot.state().find("do not compress"), std::string::npos);
}

TEST(Autopilot, AProfileThatStillFitsIsUsedAtOnce) {
  Flight flight;
  flight.host.profile_fits = true;
  flight.fly(4 + 1);
  EXPECT_TRUE(flight.host.runs_plan);
  EXPECT_EQ(flight.host.profiles, 0U);
}

TEST(Autopilot, MeasuresInSlicesNoLongerThanAStep) {
  Flight flight;
  flight.host.slices = 10;
  flight.fly(30);
  EXPECT_LE(flight.host.longest_slice_us, 100.0);
  EXPECT_GT(flight.host.longest_slice_us, 0.0);
}

TEST(Autopilot, DriftMeasuresAgainAndPlansAgain) {
  Flight flight;
  flight.host.profile_fits = true;
  flight.fly(4 + 1 + 5 + 1);
  ASSERT_TRUE(flight.host.runs_plan);
  flight.host.plan_us = 70.0;  // the link has become slower
  flight.host.next.raw_us = 300.0;
  flight.fly(20);
  EXPECT_TRUE(flight.said("measuring again"));
  flight.fly(4 + 1 + 3);
  EXPECT_EQ(flight.host.profiles, 1U) << "after a drift the profile from before counts for nothing";
  EXPECT_EQ(flight.host.plans, 2U);
  EXPECT_TRUE(flight.host.runs_plan) << "no raw step was needed";
  flight.fly(5 + 1);
  EXPECT_TRUE(flight.said("raw would take 0.30 ms")) << flight.host.lines.back();
}

TEST(Autopilot, ALinkThatBecameFastEndsCompression) {
  Flight flight;
  flight.fly(4 + 1 + 3 + 5 + 1);
  ASSERT_TRUE(flight.host.runs_plan);
  flight.host.plan_us = 10.0;
  flight.host.next = {.compresses = false, .raw_us = 9.0, .verdict = "do not compress"};
  flight.fly(20 + 4 + 1 + 3);
  EXPECT_FALSE(flight.host.runs_plan);
  flight.host.raw_us = 9.0;
  flight.fly(100);
  EXPECT_FALSE(flight.host.runs_plan);
  EXPECT_EQ(flight.host.plans, 2U);
}

TEST(Autopilot, NoiseBelowTheFactorIsNoDrift) {
  Flight flight;
  flight.fly(4 + 1 + 3 + 5 + 1);
  flight.host.plan_us = 50.0;
  flight.fly(100);
  EXPECT_EQ(flight.host.plans, 1U);
}

TEST(Autopilot, APlannerThatFailsLeavesTheStepsRaw) {
  Flight flight;
  flight.host.planner_fails = true;
  flight.fly(50);
  EXPECT_FALSE(flight.host.runs_plan);
  EXPECT_TRUE(flight.said("too many codecs"));
}

}  // namespace
}  // namespace gradpress::engine
