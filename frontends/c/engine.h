// The handle of an engine.
#pragma once

#include <gradpress/c_api.h>

#include <memory>

#include "engine/session.h"
#include "guard.h"

struct gradpress_engine {
  gradpress::c_api::Owner owner = {};
  std::unique_ptr<gradpress::engine::Session> session = {};
};
