// Plays a trace: backward emulated by timed waits, everything else real.
#pragma once

#include <gradpress/group.h>
#include <gradpress/status.h>

#include <cstdint>
#include <functional>
#include <memory>
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
  /// Two kinds of steps take turns (ACP-SGD): the spans kept are of the first kind, which is the
  /// one that the timeline shows.
  bool alternates = false;
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
  SentBytes sent = {};               ///< what this rank sent in the last step
  SentBytes promised = {};           ///< what this rank's layouts promise for it
  double exposed_us = 0.0;           ///< median of what this rank spent in wait()
  std::vector<RankStep> ranks = {};  ///< by rank, the same on all
};

/// Every rank calls it. Gradients have heavy tails, are the same numbers in every step, and are
/// there before it: backward is a wait that leaves the CPU free, as an accelerator does. Device
/// codec work pushes later gradients back: a gradient is due after the one before it is handed
/// over, plus its gap.
/// Cost:   two gradients' memory per worker.
/// Errors: the runtime's.
Result<Replay> replay(std::unique_ptr<Group> end, const comm::Topology& topology,
                      const plan::Trace& trace, const engine::Program& program,
                      const ReplayOptions& options);

}  // namespace gradpress::cli
