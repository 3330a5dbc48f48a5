// Tensors and options of an engine, from JSON.
#pragma once

#include <gradpress/engine.h>
#include <gradpress/status.h>

#include <vector>

#include "engine/session.h"

namespace gradpress::c_api {

/// [{"name": …, "shape": […]}, …]. Errors: kInvalidArgument, naming the JSON path.
Result<std::vector<EngineTensor>> engine_tensors(const char* text);

/// What a plan among the options is read for.
struct EngineTarget {
  const std::vector<EngineTensor>& tensors;
  unsigned machines = 1;
  unsigned workers_per_machine = 1;
};
/// As gradpress_engine_make says. Errors: kInvalidArgument, naming the JSON path.
Result<engine::SessionOptions> session_options(const char* text, const EngineTarget& target);

}  // namespace gradpress::c_api
