// The autopilot's decisions, from numbers that a test makes up.
#include "engine/autopilot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace gradpress::engine {
namespace {

class FakeHost final : public AutoHost {
 public:
  double raw_us = 100.0;
  std::map<std::string, double> step_us = {{"plan", 40.0}};
  AutoPlan next = {.raw_us = 90.0, .verdict = "compress all", .candidates = {plan()}};
  bool profile_fits = false;
  unsigned slices = 3;  ///< that a profile takes
  bool planner_fails = false;
  double computes_us = 0.0;

  std::string runs = "no compression";
  std::set<std::string> held = {"no compression"};
  unsigned plans = 0;
  unsigned profiles = 0;
  unsigned changes = 0;
  unsigned left = 0;
  double slices_for_us = 0.0;
  double longest_slice_us = 0.0;
  double profile_limit_us = 0.0;
  double clock_us = 0.0;
  double change_takes_us = 0.0;
  std::vector<std::string> lines;

  static AutoCandidate plan() {
    return {.kind = AutoCandidate::Kind::kPlan, .name = "plan", .predicted_us = 40.0};
  }
  void add_codec(const std::string& name, double us, double predicted_us) {
    step_us[name] = us;
    next.candidates.push_back(
        {.kind = AutoCandidate::Kind::kCodec, .name = name, .predicted_us = predicted_us});
  }
  double runs_us() const { return runs == "no compression" ? raw_us : step_us.at(runs); }

  double now_us() override { return clock_us; }
  Result<double> slowest(double mine) override { return mine; }
  void record(unsigned /*steps*/) override {}
  Result<double> compute_us() override { return computes_us; }
  Result<bool> begin_profile(bool may_reuse, double step_us_now, double limit_us) override {
    slices_for_us = step_us_now;
    profile_limit_us = limit_us;
    if (profile_fits && may_reuse) return true;
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
  Status run(const AutoCandidate& candidate) override {
    runs = candidate.name;
    held.insert(runs);
    ++changes;
    clock_us += change_takes_us;
    return {};
  }
  Status drop(const AutoCandidate& candidate) override {
    EXPECT_NE(candidate.name, runs);
    EXPECT_EQ(held.erase(candidate.name), 1U) << candidate.name;
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
    options.window = 8;
    options.drift_interval = 20;
    options.drift_factor = 1.3;
    return options;
  }

  void fly(unsigned steps) {
    for (unsigned i = 0; i < steps; ++i) {
      ASSERT_TRUE(pilot.after_step(host.runs_us()).is_ok());
    }
  }
  /// Returns the steps it took.
  unsigned settle() {
    unsigned steps = 0;
    while (steps < 200 && !is_settled()) {
      fly(1);
      ++steps;
    }
    EXPECT_TRUE(is_settled()) << pilot.state();
    // Nothing is kept that does not run.
    EXPECT_EQ(host.held, std::set<std::string>{host.runs});
    return steps;
  }
  bool is_settled() const {
    const std::string& state = pilot.state();
    return state.find("watching") == std::string::npos &&
           state.find("measuring") == std::string::npos &&
           state.find("trying") == std::string::npos;
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
  EXPECT_NEAR(flight.host.profile_limit_us, 120.0, 1e-9) << "a fifth of six raw steps";
  EXPECT_EQ(flight.host.runs, "no compression") << "nothing is decided before links are measured";
  flight.fly(3);
  EXPECT_EQ(flight.host.runs, "plan");
  flight.settle();
  EXPECT_EQ(flight.host.runs, "plan");
  EXPECT_TRUE(
      flight.said("auto: keeps plan: no compression 0.10 ms (dropped after 4 steps); plan "
                  "0.04 ms; settling cost 0.0 of at most 6.0 baseline steps"))
      << flight.host.lines.back();
  flight.fly(100);
  EXPECT_EQ(flight.host.plans, 1U);
  EXPECT_EQ(flight.host.lines.size(), 2U);
}

TEST(Autopilot, TheFastestOfPlanAndCodecsStaysAndIsNamed) {
  struct Case {
    double first_us, second_us;
    std::string stays;
  };
  const std::vector<Case> cases = {{50.0, 60.0, "plan"},
                                   {30.0, 60.0, "efsign"},
                                   {30.0, 20.0, "acpsgd:4"},
                                   {60.0, 30.0, "acpsgd:4"}};
  for (const Case& one : cases) {
    Flight flight;
    flight.host.next.candidates.clear();
    flight.host.add_codec("efsign", one.first_us, 45.0);
    flight.host.add_codec("acpsgd:4", one.second_us, 45.0);
    flight.host.next.candidates.push_back(FakeHost::plan());
    flight.settle();
    EXPECT_EQ(flight.host.runs, one.stays);
    EXPECT_TRUE(flight.said("keeps " + one.stays)) << flight.host.lines.back();
  }
}

TEST(Autopilot, OfEqualCandidatesTheEarlierOneIsTaken) {
  for (const double second_us : {39.7, 40.0, 40.5}) {
    Flight flight;
    flight.host.next.candidates.clear();
    flight.host.add_codec("acpsgd:4", 40.0, 45.0);
    flight.host.add_codec("efsign", second_us, 30.0);
    flight.settle();
    EXPECT_EQ(flight.host.runs, "acpsgd:4") << second_us;
  }
}

TEST(Autopilot, APlanMustAlsoBeatTheCallersOwnPath) {
  // Where raw steps take 100 and the plan's 80.
  for (const double other_us : {0.0, 60.0, 81.0, 90.0, 500.0}) {
    Flight flight({.other_raw_us = [other_us] { return other_us; }});
    flight.host.step_us["plan"] = 80.0;
    flight.host.next.candidates[0].predicted_us = 65.0;
    flight.settle();
    const bool loses = other_us == 60.0 || other_us == 81.0;
    EXPECT_EQ(flight.host.runs, loses ? "no compression" : "plan") << other_us;
    EXPECT_EQ(flight.said("auto: stays with no compression"), loses) << flight.host.lines.back();
    flight.fly(1);
    EXPECT_EQ(flight.pilot.rests(), loses);
    // Raw steps that take what they took before are no drift, whatever the other path takes.
    flight.fly(60);
    EXPECT_EQ(flight.host.profiles, 1U) << other_us;
  }
}

TEST(Autopilot, AGainBelowTheLeastLeavesRaw) {
  for (const double plan_us : {98.0, 95.0}) {
    Flight flight;
    flight.host.step_us["plan"] = plan_us;
    flight.settle();
    EXPECT_EQ(flight.host.runs, plan_us == 98.0 ? "no compression" : "plan");
    EXPECT_EQ(flight.said("because plan gains less than 3.0 %"), plan_us == 98.0)
        << flight.host.lines.back();
  }
}

TEST(Autopilot, NeitherPlanNorCodecsFasterThanRawLeaveRaw) {
  Flight flight;
  flight.host.add_codec("acpsgd:4", 110.0, 40.0);
  flight.host.step_us["plan"] = 130.0;
  flight.settle();
  EXPECT_EQ(flight.host.runs, "no compression");
  EXPECT_TRUE(
      flight.said("stays with no compression: no compression 0.10 ms; plan 0.13 ms (dropped"))
      << flight.host.lines.back();
  flight.fly(100);
  EXPECT_EQ(flight.host.runs, "no compression");
}

TEST(Autopilot, ACandidateThatIsFarBehindIsStoppedAfterTwoSteps) {
  Flight flight;
  flight.host.step_us["plan"] = 250.0;
  flight.fly(4 + 1 + 3 + 2);
  EXPECT_EQ(flight.host.runs, "no compression") << flight.pilot.state();
  EXPECT_EQ(flight.pilot.spent_us(), 2 * 150.0);
}

TEST(Autopilot, PredictionsDropWhatCannotWin) {
  Flight flight;
  flight.host.add_codec("much slower than raw", 1.0, 120.0);
  flight.host.add_codec("much slower than the plan, not promising", 1.0, 85.0);
  flight.settle();
  EXPECT_EQ(flight.host.changes, 1U);
  EXPECT_EQ(flight.host.runs, "plan");
}

TEST(Autopilot, WhatIsWellBelowTheBaselineRunsWhateverThePredictionOfOthers) {
  Flight flight;
  // Predicted from codecs that were measured on busy cores: slower than the others, and wrong.
  flight.host.step_us["plan"] = 40.0;
  flight.host.add_codec("acpsgd:4", 30.0, 75.0);
  flight.settle();
  EXPECT_EQ(flight.host.runs, "acpsgd:4") << flight.pilot.state();
}

TEST(Autopilot, WhatSettlingCostsIsLimited) {
  // A change of plan takes two raw steps. The three candidates that cost are not all tried.
  Flight flight;
  flight.host.change_takes_us = 200.0;
  flight.host.next.candidates.clear();
  for (const char* name : {"a", "b", "c", "d", "e"}) flight.host.add_codec(name, 105.0, 100.0);
  flight.settle();
  EXPECT_TRUE(flight.said("was not tried, because the settling limit was reached"))
      << flight.host.lines.back();
  EXPECT_LE(flight.pilot.spent_us(), 600.0 + 200.0 + 25.0) << "one block, and the change back";
  EXPECT_EQ(flight.host.runs, "no compression");
}

TEST(Autopilot, ALargeGainIsTriedWhateverWasSpentBefore) {
  Flight flight;
  flight.host.change_takes_us = 1e4;
  flight.settle();
  EXPECT_EQ(flight.host.runs, "plan");
}

TEST(Autopilot, WhereBackwardHidesCommunicationNothingIsMeasured) {
  Flight flight;
  flight.host.computes_us = 98.0;
  flight.fly(4 + 1);
  EXPECT_TRUE(flight.is_settled());
  EXPECT_EQ(flight.host.profiles, 0U);
  EXPECT_TRUE(
      flight.said("do not compress: a step takes 0.10 ms, and 2.0 % of it is communication"))
      << flight.host.lines.back();
  flight.fly(1);
  EXPECT_TRUE(flight.pilot.rests());
}

TEST(Autopilot, LongStepsAreWatchedForAFewOnly) {
  Flight flight;
  flight.host.raw_us = 2e6;
  flight.fly(2 + 1);
  EXPECT_EQ(flight.host.profiles, 1U);
}

TEST(Autopilot, DoesNotCompressWhereThePlannerSeesNoGain) {
  Flight flight;
  flight.host.next = {.raw_us = 90.0, .verdict = "do not compress: fast link"};
  flight.fly(4 + 1);
  EXPECT_FALSE(flight.pilot.rests());
  flight.fly(200);
  EXPECT_TRUE(flight.pilot.rests());
  EXPECT_EQ(flight.host.runs, "no compression");
  EXPECT_EQ(flight.host.lines.size(), 1U);
  EXPECT_NE(flight.pilot.state().find("do not compress"), std::string::npos);
}

TEST(Autopilot, AProfileThatStillFitsIsUsedAtOnce) {
  Flight flight;
  flight.host.profile_fits = true;
  flight.fly(4 + 1);
  EXPECT_EQ(flight.host.runs, "plan");
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
  flight.settle();
  ASSERT_EQ(flight.host.runs, "plan");
  flight.host.step_us["plan"] = 70.0;  // the link has become slower
  flight.host.next.raw_us = 300.0;
  flight.host.next.candidates.clear();
  flight.host.add_codec("plan 2", 60.0, 60.0);
  flight.fly(20);
  EXPECT_FALSE(flight.said("measuring again")) << "one look may have met a burst of load";
  flight.fly(8 + 1);
  EXPECT_TRUE(flight.said("measuring again"));
  flight.settle();
  EXPECT_EQ(flight.host.profiles, 1U) << "after a drift the profile from before counts for nothing";
  EXPECT_EQ(flight.host.plans, 2U);
  EXPECT_EQ(flight.host.runs, "plan 2");
  EXPECT_EQ(flight.host.lines.back().find("no compression"), std::string::npos)
      << "no raw step was needed";
}

TEST(Autopilot, AfterADriftWhatRunsStaysUnlessAnotherGainsTheLeast) {
  Flight flight;
  flight.settle();
  flight.host.step_us["plan"] = 70.0;
  flight.host.next.raw_us = 300.0;
  flight.host.next.candidates.clear();
  flight.host.add_codec("plan 2", 69.0, 60.0);
  flight.fly(20 + 9);
  flight.settle();
  EXPECT_EQ(flight.host.plans, 2U);
  EXPECT_EQ(flight.host.runs, "plan");
}

TEST(Autopilot, ALinkThatBecameFastEndsCompression) {
  Flight flight;
  flight.settle();
  ASSERT_EQ(flight.host.runs, "plan");
  flight.host.step_us["plan"] = 10.0;
  flight.host.raw_us = 9.0;
  flight.host.next = {.raw_us = 9.0, .verdict = "do not compress"};
  flight.fly(20 + 9);
  flight.settle();
  EXPECT_EQ(flight.host.runs, "no compression");
  flight.fly(100);
  EXPECT_EQ(flight.host.runs, "no compression");
  EXPECT_EQ(flight.host.plans, 2U);
}

TEST(Autopilot, NoiseBelowTheFactorIsNoDrift) {
  Flight flight;
  flight.settle();
  flight.host.step_us["plan"] = 50.0;
  flight.fly(100);
  EXPECT_EQ(flight.host.plans, 1U);
}

TEST(Autopilot, ABurstOfLoadIsNoDrift) {
  Flight flight;
  flight.settle();
  for (unsigned i = 0; i < 5; ++i) {
    flight.host.step_us["plan"] = 80.0;
    flight.fly(20);
    flight.host.step_us["plan"] = 40.0;
    flight.fly(29);
  }
  EXPECT_EQ(flight.host.plans, 1U);
}

TEST(Autopilot, ARestoredPlanIsComparedAfterADrift) {
  Flight flight;
  flight.host.runs = "the checkpoint's plan";
  flight.host.held = {flight.host.runs};
  flight.host.step_us[flight.host.runs] = 60.0;
  flight.pilot.resume("the checkpoint's plan");
  flight.fly(20);
  flight.host.step_us[flight.host.runs] = 90.0;
  flight.fly(20 + 9);
  flight.settle();
  EXPECT_EQ(flight.host.runs, "plan");
}

TEST(Autopilot, APlannerThatFailsLeavesTheStepsRaw) {
  Flight flight;
  flight.host.planner_fails = true;
  flight.fly(50);
  EXPECT_EQ(flight.host.runs, "no compression");
  EXPECT_TRUE(flight.said("too many codecs"));
}

}  // namespace
}  // namespace gradpress::engine
