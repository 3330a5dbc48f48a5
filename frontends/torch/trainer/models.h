// The models of `gradpress train`. Every output layer is named `output`, so that one rule finds it.
#pragma once

#include <ATen/core/Generator.h>
#include <gradpress/status.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dataset.h"
#include "settings.h"

namespace gradpress::trainer {

/// Zeroes a part of what it is given, and scales the rest so that the mean stays. Draws from a
/// generator of its own.
class Dropout {
 public:
  explicit Dropout(double part);
  void seed(std::uint64_t seed);
  torch::Tensor operator()(const torch::Tensor& x);

 private:
  double keeps_;
  at::Generator generator_;
};

/// Threads: one at a time, after it was made; forward() draws from no generator that others use.
class Model : public torch::nn::Module {
 public:
  /// What the next forward() drops while training depends on this alone. Without dropout: nothing.
  virtual void seed_dropout(std::uint64_t seed) { static_cast<void>(seed); }
  /// What batches hold in, one row of logits per target out: [n, classes], or [n · sequence,
  /// classes].
  virtual torch::Tensor forward(const torch::Tensor& inputs) = 0;
};

/// The pattern of the output layer's parameters.
inline constexpr std::string_view kOutputPattern = "output.*";

std::vector<std::string_view> model_names();
bool is_recurrent(std::string_view model);

/// Draws the first parameters from torch's generator: no other thread may draw at the same time.
/// Errors: kInvalidArgument: no such model, one that does not take such samples, sizes that do not
///         fit each other.
Result<std::shared_ptr<Model>> make_model(const ModelSettings& settings, const SampleShape& shape);

// By kind of sample, each in a file of its own. Null: the name is not of this kind.
std::shared_ptr<Model> make_image_model(const ModelSettings& settings, const SampleShape& shape);
std::shared_ptr<Model> make_language_model(const ModelSettings& settings, const SampleShape& shape);

}  // namespace gradpress::trainer
