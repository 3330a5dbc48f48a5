// From flags to what the data parallel wrapper is told.
#pragma once

#include <gradpress/ddp.h>
#include <gradpress/status.h>

#include <functional>
#include <string>
#include <string_view>

#include "models.h"
#include "optimizer.h"
#include "settings.h"

namespace gradpress::trainer {

struct Compression {
  ddp::Options options = {};
  bool engine_has_momentum = false;
  std::string message = {};  ///< one line of what was chosen for the user; may be empty
};

struct CompressionInput {
  const Settings& settings;
  /// What is to run first.
  std::string codec = "none";
  const NamedTensors& parameters;  ///< in the order of registration
  const World& world;
};

/// Errors: kInvalidArgument: a plan that is missing or for another model or world.
Result<Compression> choose_compression(const CompressionInput& input);

}  // namespace gradpress::trainer
