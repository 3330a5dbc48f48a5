// What a model's backward pass looks like: its gradients, in the order in which they become ready.
#pragma once

#include <gradpress/shape.h>
#include <gradpress/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace gradpress::plan {

struct Tensor {
  std::string name;
  Shape shape;
  std::uint64_t elements = 0;
  double ready_gap_us = 0.0;  ///< since the previous gradient became ready
};

/// A trace with more tensors is refused: no model has them, and a plan would take minutes.
inline constexpr std::size_t kMaxTensors = 100'000;

struct Trace {
  std::string model;
  std::string source;  ///< where the times come from; empty where the file does not say
  double forward_us = 0.0;
  std::vector<Tensor> tensors;  ///< in backward order, at least one

  double backward_us() const;
  std::uint64_t elements() const;
  /// The `count` largest tensors (the later of equals first), in backward order; the time of the
  /// others is kept in the gaps, so that backward is as long as before.
  Trace largest(std::size_t count) const;
};

/// The format gradpress-trace-1. Errors: kInvalidArgument, naming file and JSON path: an unreadable
/// file, a missing field, a negative time, a shape that does not have `elements` elements, a name
/// twice, no tensor or more than kMaxTensors.
Result<Trace> read_trace(const std::string& file);
Status write_trace(const std::string& file, const Trace& trace);

}  // namespace gradpress::plan
