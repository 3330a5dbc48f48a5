// SGD and AdamW, after the gradients are averaged.
//
// torch's own SGD cannot keep momentum for the weight decay alone, which is what is left to it
// when the engine accumulates the gradients' momentum before a sparsifier (momentum correction):
// momentum is linear, so the update is then the same as that of SGD with momentum for both.
#pragma once

#include <gradpress/status.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "settings.h"

namespace gradpress::trainer {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

/// Threads: one at a time. Parameters' values are changed in place.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Requires: every parameter has a gradient, or none of this step.
  virtual void step(double lr) = 0;
  /// What the next step needs, for a checkpoint; writing to the tensors restores it.
  virtual NamedTensors state() = 0;

 protected:
  Optimizer() = default;
};

/// `engine_has_momentum`: gradients come with their momentum.
/// Errors: kInvalidArgument on a name that is none.
Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerSettings& settings,
                                                  const NamedTensors& parameters,
                                                  bool engine_has_momentum);

}  // namespace gradpress::trainer
