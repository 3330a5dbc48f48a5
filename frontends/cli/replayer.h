// Plays a trace: backward emulated by timed waits, everything else real.
#pragma once

#include <gradpress/group.h>
#include <gradpress/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/topology.h"
#include "engine/program.h"
#include "engine/runtime.h"
#include "plan/span.h"
#include "plan/trace.h"

namespace gradpress::cli {

struct ReplayOptions {
  unsigned steps = 20;
  unsigned warmup = 3;
  engine::RuntimeOptions runtime = {};
  /// Called on rank 0 after each step with its time.
  std::function<void(unsigned step, double us)> progress = {};
};

/// What one rank saw; step times are the slowest rank's, the same on all.
struct Replay {
  std::vector<double> step_us = {};
  SentBytes sent = {};                 ///< what this rank sent in the last step
  SentBytes promised = {};             ///< what this rank's layouts promise for it
  double exposed_us = 0.0;             ///< median of what this rank spent in wait()
  std::vector<plan::Span> spans = {};  ///< of the step that took the median time
};

/// Every rank calls it. Gradients have heavy tails, and are the same numbers in every step; the
/// time an accelerator would write them is the wait. Device codec work pushes later gradients
/// back: a gradient is due after the one before it is handed over, plus its gap.
/// Cost:   two gradients' memory per worker.
/// Errors: the runtime's.
Result<Replay> replay(std::unique_ptr<Group> end, const comm::Topology& topology,
                      const plan::Trace& trace, const engine::Program& program,
                      const ReplayOptions& options);

}  // namespace gradpress::cli
