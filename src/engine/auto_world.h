// What the autopilot sees, for real: a fabric, its clock, the engine that runs plans.
#pragma once

#include <gradpress/engine.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/autopilot.h"
#include "engine/calibration.h"
#include "engine/exchange.h"
#include "engine/profile_cache.h"
#include "engine/program.h"
#include "engine/recorder.h"
#include "plan/cluster.h"
#include "plan/strategy.h"
#include "sync/fabric.h"

namespace gradpress::engine {

/// What it may ask of the engine.
struct AutoActions {
  std::function<Status(const AutoCandidate&)> run = {};
  std::function<Status(const std::string& name)> drop = {};
  std::function<void(const std::string&)> say = {};
};

/// What to measure for a model whose raw step takes so long, within `limit_us` in all and in slices
/// of at most half a step. A raw step sends all gradients, which says how long calls of fewer bytes
/// take. Sizes without which no line can be fitted are measured in any case.
CalibrationOptions calibration_for(std::span<const TensorSpec> tensors,
                                   std::span<const std::string> codecs,
                                   const comm::Topology& topology, double step_us, double limit_us);

/// Threads: the engine's caller alone, between steps.
class AutoWorld final : public AutoHost {
 public:
  /// Requires: fabric, exchange, tensors, options, recorder and clock outlive it.
  AutoWorld(sync::Fabric& fabric, Exchange& exchange, std::span<const TensorSpec> tensors,
            const EngineOptions& options, TraceRecorder& recorder, Clock& clock,
            AutoActions actions);

  /// Whether the options name codecs to choose from.
  /// Errors: kInvalidArgument.
  static Status check(const EngineOptions& options);

  double now_us() override;
  Result<double> slowest(double mine) override { return exchange_.slowest(mine); }
  void record(unsigned steps) override { recorder_.start(steps); }
  Result<double> compute_us() override;
  Result<bool> begin_profile(bool may_reuse, double step_us, double limit_us) override;
  Result<bool> continue_profile(double budget_us) override;
  Result<AutoPlan> make_plan() override;
  Status run(const AutoCandidate& candidate) override { return actions_.run(candidate); }
  Status drop(const AutoCandidate& candidate) override { return actions_.drop(candidate.name); }
  void say(const std::string& line) override { actions_.say(line); }

 private:
  /// Whether a quick look at the link gives what the profile says.
  Result<bool> still_fits(const plan::Cluster& cluster);
  /// Ready times: each rank's median over its steps, in the mean over all ranks.
  Result<plan::Trace> agreed_trace();
  /// A step with the codec for every tensor that can take it, by the timeline; 0: none can.
  Result<double> predict_codec(const plan::Setting& setting, const std::string& codec) const;
  ProfileKey key() const;

  sync::Fabric& fabric_;
  Exchange& exchange_;
  const std::span<const TensorSpec> tensors_;
  const EngineOptions& options_;
  TraceRecorder& recorder_;
  Clock& clock_;
  const AutoActions actions_;
  const std::vector<std::string> codecs_;  ///< to choose from, rules' included
  std::optional<Calibrator> calibrator_;
  std::optional<plan::Cluster> cluster_;
  unsigned plans_ = 0;  ///< made so far
};

}  // namespace gradpress::engine
