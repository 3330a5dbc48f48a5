// The backends that the group contract is tested on.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/topology.h"
#include "support/workers.h"

namespace gradpress::test {

/// One backend: makes the ends that live in this process. With workers as threads those are all of
/// them; a backend of processes makes one, and the same test runs in each process.
struct Backend {
  std::string name = {};
  std::function<World(const comm::Topology&)> make_world = {};
  /// Of a backend of processes: how many the job has. No world of another size can be made.
  unsigned processes = 0;

  bool makes(const comm::Topology& topology) const {
    return processes == 0 || processes == topology.workers();
  }
};

/// Those of this process: when mpirun started it, its MPI, else all whose workers are threads.
std::vector<Backend> group_backends();

}  // namespace gradpress::test
