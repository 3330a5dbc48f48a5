// Codec "auto": runs raw, measures, plans, switches, measures again, and goes back where that was
// no gain.
//
//   watch     raw steps are timed, and when their gradients become ready
//   measure   links and codecs, in slices between steps; or a profile from before that still fits
//   try       the plan runs; after a window its median decides
//   stay      with the plan or raw; every so often a look whether times have drifted: then measure
//   again
#pragma once

#include <gradpress/engine.h>
#include <gradpress/plan.h>
#include <gradpress/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradpress::engine {

/// What the planner makes of the measurements.
struct AutoPlan {
  gradpress::Plan plan = {};
  bool compresses = false;  ///< false: raw is as good
  double raw_us = 0.0;      ///< the best iteration without codecs, predicted
  std::string verdict = {};
  std::vector<std::string> codecs = {};  ///< that it uses, those of most elements first
};

/// The world as the autopilot sees it: a seam for tests. Calls that reach other ranks are made by
/// all ranks in the same order.
class AutoHost {
 public:
  virtual ~AutoHost() = default;
  AutoHost(const AutoHost&) = delete;
  AutoHost& operator=(const AutoHost&) = delete;

  /// The largest of all ranks' values: the same bits on every rank.
  virtual Result<double> slowest(double mine) = 0;
  /// Records ready times from the next step on.
  virtual void record(unsigned steps) = 0;
  /// Begins to measure links and codecs, in slices of which none should take longer than a step.
  /// True: a profile from before fits, and there is nothing to do.
  virtual Result<bool> begin_profile(bool may_reuse, double step_us) = 0;
  /// Measures for no longer than that, but at least one slice. True: the profile is complete.
  virtual Result<bool> continue_profile(double budget_us) = 0;
  /// Plans with what was recorded and measured: the same plan on every rank.
  virtual Result<AutoPlan> make_plan() = 0;
  virtual Status run_plan(const gradpress::Plan& plan) = 0;
  /// The codec for every tensor that can take it.
  virtual Status run_codec(const std::string& codec) = 0;
  virtual Status run_raw() = 0;
  virtual void say(const std::string& line) = 0;

 protected:
  AutoHost() = default;
};

/// Every decision is taken from numbers that all ranks have, at the same step.
/// Threads: the engine's caller alone.
class Autopilot {
 public:
  /// Requires: `host` outlives it and runs raw.
  Autopilot(AutoOptions options, AutoHost& host);

  /// Begins with the first step; also after a change from outside: times from before do not count.
  void start();
  /// Goes on with a plan that was kept before (a checkpoint's).
  void resume(std::string verdict);

  /// After every step: what it took, from the end of the last one's after_step() on.
  /// Errors: the host's.
  Status after_step(double step_us);

  /// Whether it decided against compression and what a plan left behind has been sent.
  bool rests() const { return phase_ == Phase::kStay && !runs_plan_ && steps_ > 0; }
  /// What was decided, for people.
  const std::string& state() const { return state_; }

 private:
  enum class Phase : std::uint8_t { kWatch, kMeasure, kTry, kTryCodec, kStay };

  void enter(Phase phase);
  Status end_watch();
  Status plan();
  Status end_try();
  /// Tries the next of the plan's codecs for all tensors, or keeps the fastest.
  Status try_next_codec();
  Status end_try_codec();
  /// Stays with the plan or the codec that runs, if it is faster than raw.
  Status keep(double median_us);
  Status look_for_drift();
  /// The slowest rank's median of the last steps.
  Result<double> agreed_median();

  const AutoOptions options_;
  AutoHost& host_;
  Phase phase_ = Phase::kWatch;
  unsigned steps_ = 0;  ///< in this phase
  std::vector<double> times_us_;
  double usual_us_ = 0.0;    ///< what drift is measured against; 0: not known
  double watched_us_ = 0.0;  ///< what raw steps took
  double raw_us_ = 0.0;      ///< what a plan must beat
  bool raw_measured_ = false;
  bool runs_plan_ = false;
  AutoPlan plan_;            ///< the one that is tried
  double plan_us_ = 0.0;     ///< what it took
  std::size_t codec_ = 0;    ///< of the plan's, the one that is tried for all tensors
  std::size_t fastest_ = 0;  ///< of those that were faster than the plan
  double fastest_us_ = 0.0;  ///< what that one took, or the plan
  bool drifted_ = false;
  std::string verdict_;
  std::string state_;
};

}  // namespace gradpress::engine
