// The handle of a group.
#pragma once

#include <gradpress/c_api.h>
#include <gradpress/world.h>

#include <string>

#include "guard.h"

struct gradpress_group {
  gradpress::c_api::Owner owner = {};
  /// The group, and how its ranks are spread over machines.
  gradpress::World world = {};
  std::string backend = {};
};
