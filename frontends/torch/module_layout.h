// A module as data parallel sees it: what is trained, what is only copied.
#pragma once

#include <ATen/core/Tensor.h>
#include <gradpress/engine.h>
#include <gradpress/status.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace gradpress::ddp {

struct ModuleLayout {
  /// For the engine, in the reverse order of registration; `parameters` are the same ones.
  std::vector<EngineTensor> tensors = {};
  std::vector<at::Tensor> parameters = {};
  /// Parameters without gradients.
  std::vector<at::Tensor> frozen = {};
  std::vector<at::Tensor> buffers = {};
  /// A line for each of them, in the order of registration: equal where modules are alike.
  std::string description = {};
};

/// A tensor that has several names counts once, under the first.
/// Errors: kInvalidArgument: no module, a parameter that is not float32 on the CPU and contiguous,
///         none that needs a gradient.
Result<ModuleLayout> read_module(const torch::nn::Module* module);

}  // namespace gradpress::ddp
