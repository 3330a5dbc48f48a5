// Codec "auto": runs raw, measures, plans, compares candidates in interleaved blocks of steps, and
// keeps the fastest (docs/decisions/0023-auto-by-interleaved-blocks.md).
//
//   watch     steps of what runs are timed, and when their gradients become ready
//   measure   links and codecs, in slices between steps; or a kept profile that still fits
//   try       rounds: one block of steps of each candidate, slow candidates are dropped
//   stay      with the winner; looks for drift at intervals, and measures again after drift
#pragma once

#include <gradpress/engine.h>
#include <gradpress/plan.h>
#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gradpress::engine {

/// Something that steps can run.
struct AutoCandidate {
  enum class Kind : std::uint8_t {
    kRaw,    ///< no compression
    kCodec,  ///< `name` for every tensor that can take it
    kPlan,   ///< `plan`
    kGiven,  ///< what ran before the autopilot began
  };
  Kind kind = Kind::kRaw;
  std::string name = {};  ///< for people; no two candidates of a comparison share one
  gradpress::Plan plan = {};
  double predicted_us = 0.0;  ///< a step, by the timeline
};

/// What the planner makes of the measurements.
struct AutoPlan {
  double raw_us = 0.0;                         ///< the best step without codecs, predicted
  std::string verdict = {};                    ///< one sentence
  std::vector<AutoCandidate> candidates = {};  ///< that compress; the earlier one wins a tie
};

/// The world as the autopilot sees it: a seam for tests. Calls that reach other ranks are made by
/// all ranks in the same order.
class AutoHost {
 public:
  virtual ~AutoHost() = default;
  AutoHost(const AutoHost&) = delete;
  AutoHost& operator=(const AutoHost&) = delete;

  /// This rank's clock.
  virtual double now_us() = 0;
  /// The largest of all ranks' values: the same bits on every rank.
  virtual Result<double> slowest(double mine) = 0;
  /// Records ready times from the next step on.
  virtual void record(unsigned steps) = 0;
  /// Forward and backward of a recorded step without what they wait for, the slowest rank's; 0:
  /// nothing was recorded.
  virtual Result<double> compute_us() = 0;
  /// Begins to measure links and codecs, within `limit_us` in all, in slices of which none should
  /// take longer than a step. True: a kept profile fits, and there is nothing to do.
  virtual Result<bool> begin_profile(bool may_reuse, double step_us, double limit_us) = 0;
  /// Measures for no longer than that, but at least one slice. True: the profile is complete.
  virtual Result<bool> continue_profile(double budget_us) = 0;
  /// Plans with what was recorded and measured: the same on every rank.
  virtual Result<AutoPlan> make_plan() = 0;
  /// The next step runs it. What ran before may be kept, to run again.
  virtual Status run(const AutoCandidate& candidate) = 0;
  /// It will not run again. Requires: it does not run now.
  virtual Status drop(const AutoCandidate& candidate) = 0;
  virtual void say(const std::string& line) = 0;

 protected:
  AutoHost() = default;
};

/// Takes every decision from numbers that all ranks have, at the same step.
/// Threads: the engine's caller alone.
class Autopilot {
 public:
  /// Requires: `host` outlives it and runs raw.
  Autopilot(AutoOptions options, AutoHost& host);

  /// Begins with the first step; also after a change from outside: earlier times do not count.
  void start();
  /// Goes on with a plan that was kept before (a checkpoint's).
  void resume(std::string verdict);

  /// After every step: what it took, from the end of the last after_step() on.
  /// Errors: the host's.
  Status after_step(double step_us);

  /// Whether it decided against compression and a step has sent what a candidate left behind.
  bool rests() const {
    return phase_ == Phase::kStay && runs_.kind == AutoCandidate::Kind::kRaw && steps_ > 0;
  }
  /// The name of the candidate that runs.
  const std::string& runs() const { return runs_.name; }
  /// What was decided, for people.
  const std::string& state() const { return state_; }
  /// Not 0: the caller is asked to run so many steps by its own path now, and to answer
  /// other_raw_us with their time. If it does not, its last answer counts.
  unsigned baseline_steps() const { return asks_baseline_ ? kBaselineSteps : 0; }
  /// What settling has cost so far, in µs: the same on every rank.
  double spent_us() const;

 private:
  enum class Phase : std::uint8_t { kWatch, kMeasure, kTry, kStay };
  static constexpr unsigned kBaselineSteps = 4;

  struct Trial {
    AutoCandidate what;
    std::vector<double> block_us = {};  ///< the medians of its blocks, round by round
    unsigned counted = 0;               ///< steps
    unsigned steps = 0;                 ///< all of them, but those of the watch
    bool live = true;
    bool held = false;  ///< the host keeps it, to run again
    std::string why_out = {};
  };

  void enter(Phase phase);
  void watch();
  Status end_watch();
  Status plan();
  /// Stays with what runs, without having tried anything.
  Status stay(const std::string& why);

  Status begin_round();
  /// Runs the next candidate of the round, or ends the round.
  Status next_block();
  Status try_step(double step_us);
  /// Whether the block's steps so far show that its candidate is far behind.
  bool is_far_behind() const;
  Status end_block();
  Status end_round();
  Status drop_the_slow();
  static void drop(Trial& trial, std::string why);
  /// Lets the host forget what was dropped and does not run.
  Status release();
  Status decide();

  /// The logarithms of how much slower `trial` is than `other`, round by round.
  static std::vector<double> differences(const Trial& trial, const Trial& other);
  /// How much slower `trial` is than `other`, as a logarithm: at least so much in most rounds.
  static double behind(const Trial& trial, const Trial& other);
  /// The live candidate with the least median over rounds.
  std::size_t leader() const;
  /// Per live trial, the median over rounds of its difference from the round's mean.
  std::vector<double> scores() const;
  double noise() const;
  /// What a step of it takes beside base_us_: by its rounds, or else by the prediction.
  double undisturbed_us(const Trial& trial) const;
  /// A candidate's step, over all its rounds.
  static double usual_us(const Trial& trial);
  std::string figures() const;

  Status look_for_drift();
  /// The slowest rank's median of the last steps.
  Result<double> agreed_median();
  /// Adds to the account what this rank's work between steps took, as the slowest rank saw it.
  Status settle_account();
  /// Whether the account allows that much more, and to drop what is held.
  bool affords(double us) const;
  /// The caller's own path: what the slowest rank answers; 0: unknown.
  Result<double> own_path_us();

  const AutoOptions options_;
  AutoHost& host_;
  const std::size_t block_steps_;
  const std::size_t most_rounds_;

  Phase phase_ = Phase::kWatch;
  unsigned steps_ = 0;  ///< in this phase or block
  std::vector<double> times_us_;
  AutoCandidate runs_;
  double usual_us_ = 0.0;  ///< what drift is measured against; 0: not known
  bool drifted_ = false;
  bool suspects_drift_ = false;

  double watched_us_ = 0.0;  ///< what ran during the watch
  double base_us_ = 0.0;     ///< the baseline's step, undisturbed
  bool own_path_ = false;    ///< the baseline is the caller's
  bool asks_baseline_ = false;
  double spent_us_ = 0.0;      ///< the account, without the candidates' steps
  double unsettled_us_ = 0.0;  ///< work between steps that is not in the account yet
  double change_us_ = 0.0;     ///< the longest change of plan so far

  std::vector<Trial> trials_;       ///< the first is the reference: what ran during the watch
  std::vector<std::size_t> queue_;  ///< trials of this round that have not run, the last first
  std::size_t now_ = 0;             ///< the trial that runs
  std::size_t round_ = 0;           ///< from 0
  std::vector<double> scatter_;     ///< |log t(i) - log t(i+2)| within blocks
  std::string verdict_;
  std::string state_;
};

}  // namespace gradpress::engine
