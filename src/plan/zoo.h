// Traces of well-known models, built from their architecture: no file and no GPU needed.
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "plan/trace.h"

namespace gradpress::plan {

struct ZooOptions {
  double tflops = 0.0;  ///< what a worker really computes per second
  /// Images or tokens per worker; the default is 32 images or 1024 tokens.
  std::optional<std::uint64_t> batch{};
};

/// vgg16, resnet50, …, lstm.
std::span<const std::string_view> zoo_models();

/// Names and shapes are the architecture's, in backward order. Times are an estimate and `source`
/// says so: a layer's backward takes twice its forward's operations at the given speed, shared out
/// over its tensors by size.
/// Errors: kInvalidArgument: an unknown model (with the list), a speed or a batch of zero or less.
Result<Trace> zoo_trace(std::string_view model, const ZooOptions& options);

}  // namespace gradpress::plan
