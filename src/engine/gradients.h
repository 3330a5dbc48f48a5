// Real gradients of a few steps: kept as ready() gets them, written to a file and read back.
#pragma once

#include <gradpress/engine.h>
#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <istream>
#include <ostream>
#include <span>
#include <string_view>
#include <vector>

#include "engine/program.h"

namespace gradpress::engine {

/// Threads: the engine's caller alone. Memory: all gradients, times the steps kept.
class GradientRecorder {
 public:
  /// From the next step on, for that many; what was kept before is dropped.
  void start(unsigned steps);
  bool is_recording() const { return left_ > 0; }

  /// Requires: a tensor of `tensors`, with as many elements.
  void ready(std::size_t tensor, std::span<const float> gradient,
             std::span<const TensorSpec> tensors);
  /// Tensors that did not come count as zero.
  void end_step();

  RecordedGradients gradients(std::span<const TensorSpec> tensors, unsigned rank,
                              unsigned workers) const;

 private:
  unsigned left_ = 0;
  bool in_step_ = false;
  std::vector<std::vector<std::vector<float>>> steps_;  ///< by step, then tensor
};

/// The format of docs/gradients_file.md. Errors: kInvalidArgument, beginning with `name`.
Status write_gradients(std::ostream& out, std::string_view name,
                       const RecordedGradients& gradients);
/// Never believes a number of the file: nothing is allocated that its bytes could not fill.
/// Requires: a stream that can seek. Errors: kInvalidArgument, beginning with `name`.
Result<RecordedGradients> read_gradients(std::istream& in, std::string_view name);

}  // namespace gradpress::engine
