// When gradients become ready, over some steps.
#pragma once

#include <gradpress/engine.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/program.h"

namespace gradpress::engine {

/// Time that the caller spends inside the engine, on codec work, is no part of backward: it is left
/// out.
/// Threads: the engine's caller alone. Memory: a float per tensor and step.
class TraceRecorder {
 public:
  explicit TraceRecorder(std::size_t tensors) : tensors_(tensors) {}

  /// From the next step on, for that many; what was recorded before is dropped.
  void start(unsigned steps);
  /// Keeps what was recorded and records no more.
  void stop() { left_ = 0; }
  bool is_recording() const { return left_ > 0; }

  /// The tensor's gradient came at `now`; the engine was left again at `done`.
  void ready(std::size_t tensor, Time now, Time done);
  /// The step's wait() was called at `called` and ended at `done`. Tensors that did not come count
  /// as ready then.
  void end_step(Time called, Time done);

  /// Medians over the steps, which one slow step does not move. Per tensor, from a step's first
  /// gradient on.
  std::vector<float> median_ready_us() const;
  double median_forward_us() const;
  /// Forward and backward: until the last gradient; 0 when no whole step was recorded.
  double median_compute_us() const;
  RecordedTrace trace(std::span<const TensorSpec> tensors) const;

 private:
  std::vector<float> mean_ready_us() const;

  const std::size_t tensors_;
  unsigned left_ = 0;
  bool in_step_ = false;
  Time last_end_{0};             ///< of the step before; zero: unknown
  Time first_{0};                ///< when the step's first gradient came
  Time inside_{0};               ///< spent in the engine in this step
  std::vector<float> now_us_;    ///< of this step, from its first gradient; below 0: not yet
  std::vector<float> ready_us_;  ///< of all steps, step by step
  std::vector<double> forward_us_;
};

}  // namespace gradpress::engine
