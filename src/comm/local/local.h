// The backend `local`: workers are threads of one process, their links are emulated.
#pragma once

#include <gradpress/group.h>

#include <chrono>
#include <memory>
#include <vector>

#include "comm/local/link.h"
#include "comm/topology.h"

namespace gradpress::comm {

struct LocalOptions {
  Topology topology = {};
  Link inter = {};  ///< each machine's card, shared by its workers; by default as fast as memory
  Link intra = {};  ///< each worker's way to the others of its machine
  /// How long a peer may be silent before it counts as lost.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
};

/// One end per worker, by rank; each is for one worker's thread. Nothing is shared but through
/// them, so that worlds can be formed and dropped at will.
/// Cost:   a sleeping thread per end and per end of a sub-group.
/// Errors: kInvalidArgument on no workers, or more than 4096.
Result<std::vector<std::unique_ptr<Group>>> make_local_world(const LocalOptions& options);

}  // namespace gradpress::comm
