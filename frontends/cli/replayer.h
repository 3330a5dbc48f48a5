// Plays a trace: backward emulated by timed waits, everything else real.
#pragma once

#include <gradpress/group.h>
#include <gradpress/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "clock_offset.h"
#include "comm/topology.h"
#include "engine/program.h"
#include "engine/runtime.h"
#include "plan/span.h"
#include "plan/trace.h"

namespace gradpress::cli {

struct ReplayOptions {
  unsigned steps = 20;
  unsigned warmup = 3;
  /// Two kinds of steps take turns (ACP-SGD's P and Q): the spans kept are of the first kind where
  /// one was timed.
  bool alternates = false;
  /// Played instead of numbers of our own: by step, then tensor of the trace; none: our own.
  /// Rank r begins with step r, so that ranks differ, and all go round.
  std::span<const std::vector<std::span<const float>>> gradients = {};
  engine::RuntimeOptions runtime = {};
  /// Called on rank 0 after each step with its time.
  std::function<void(unsigned step, double us)> progress = {};
};

/// One rank's part of the step that took the median time.
struct RankStep {
  double began_us = 0.0;               ///< after rank 0's, by rank 0's clock
  ClockOffset clock = {};              ///< how that was found
  std::vector<plan::Span> spans = {};  ///< from this rank's beginning on
};

/// What one rank saw; step times are the slowest rank's, the same on all.
struct Replay {
  std::vector<double> step_us = {};
  std::vector<unsigned> kinds = {};  ///< of each step: 1 for ACP-SGD's Q, else 0
  unsigned shown = 0;                ///< the kind of step that `ranks` shows
  SentBytes sent = {};               ///< by this rank, in the mean of the last step of each kind
  SentBytes promised = {};           ///< what this rank's layouts promise for them
  double exposed_us = 0.0;           ///< median of what this rank spent in wait()
  std::vector<RankStep> ranks = {};  ///< by rank, the same on all
};

/// Every rank calls it. Gradients are those recorded, or else have heavy tails and are the same
/// numbers in every step. They are there before it: backward is a wait that leaves the CPU free, as
/// an accelerator does. Device codec work pushes later gradients back: a gradient is due after the
/// one before it is handed over, plus its gap. Two programs take turns as the engine's do, on the
/// same residuals. Cost:   two gradients' memory per worker. Errors: the runtime's.
Result<Replay> replay(std::unique_ptr<Group> end, const comm::Topology& topology,
                      const plan::Trace& trace, const engine::Programs& programs,
                      const ReplayOptions& options);

}  // namespace gradpress::cli
