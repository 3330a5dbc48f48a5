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
#include "sync/fabric.h"

namespace gradpress::engine {

/// What it may ask of the engine.
struct AutoActions {
  std::function<Status(const gradpress::Plan&)> run_plan = {};
  std::function<Status(const std::string&)> run_codec = {};
  std::function<Status()> run_raw = {};
  std::function<void(const std::string&)> say = {};
};

/// What to measure for a model whose raw step takes so long, in slices of half of that at most: a
/// raw step sends all gradients, which says how long calls of fewer bytes take. Sizes without which
/// no line can be fitted are measured in any case.
CalibrationOptions calibration_for(std::span<const TensorSpec> tensors,
                                   std::span<const std::string> codecs,
                                   const comm::Topology& topology, double step_us);

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

  Result<double> slowest(double mine) override { return exchange_.slowest(mine); }
  void record(unsigned steps) override { recorder_.start(steps); }
  Result<bool> begin_profile(bool may_reuse, double step_us) override;
  Result<bool> continue_profile(double budget_us) override;
  Result<AutoPlan> make_plan() override;
  Status run_plan(const gradpress::Plan& plan) override { return actions_.run_plan(plan); }
  Status run_codec(const std::string& codec) override { return actions_.run_codec(codec); }
  Status run_raw() override { return actions_.run_raw(); }
  void say(const std::string& line) override { actions_.say(line); }

 private:
  /// Whether a quick look at the link gives what the profile says.
  Result<bool> still_fits(const plan::Cluster& cluster);
  /// Ready times in the mean over all ranks.
  Result<plan::Trace> agreed_trace();
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
};

}  // namespace gradpress::engine
