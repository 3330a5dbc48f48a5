// The backend `gloo`: workers are processes, their messages go by TCP through Gloo's buffers.
#pragma once

#include <gradpress/group.h>

#include <chrono>
#include <memory>
#include <string>

#include "comm/process.h"
#include "comm/store/server.h"

namespace gradpress::comm {

struct GlooOptions {
  ProcessWorld world = {};
  std::string name = {};
  std::string interface = {};  ///< empty: the one that reaches the store
  /// Gloo's event loop never takes a core from a running thread. It turns in circles while another
  /// thread holds the lock of a connection that it wants: where that thread lost its core to it,
  /// both wait for the end of a turn, 3 ms. Better with more processes than cores that only
  /// communicate (short messages take a third to a tenth of the time), worse where cores compute.
  bool patient = false;
  std::chrono::milliseconds timeout{0};
  std::chrono::milliseconds start_timeout{0};
  std::unique_ptr<store::StoreServer> server = {};  ///< where this process hosts the store already
};

/// Whether this build has Gloo.
bool has_gloo();

/// This process's end of the world. Several ranks may be threads of one process.
/// Cost:   per process a store connection, a watch and a thread of Gloo's; per group a lane and a
///         connection to every other member. A message allocates a few small objects.
/// Errors: as connect_world; kInvalidArgument, naming the package, without Gloo.
Result<std::unique_ptr<Group>> connect_gloo(GlooOptions options);

}  // namespace gradpress::comm
