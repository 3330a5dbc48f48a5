// Who shares a machine with whom: ranks are numbered machine by machine.
#pragma once

#include <vector>

namespace gradpress::comm {

struct Topology {
  unsigned machines = 1;
  unsigned workers_per_machine = 1;

  unsigned workers() const { return machines * workers_per_machine; }
  unsigned machine_of(unsigned rank) const { return rank / workers_per_machine; }
  bool same_machine(unsigned a, unsigned b) const { return machine_of(a) == machine_of(b); }

  /// The sub-group `intra`: all workers of this rank's machine.
  std::vector<unsigned> intra_ranks(unsigned rank) const {
    std::vector<unsigned> ranks;
    for (unsigned i = 0; i < workers_per_machine; ++i) {
      ranks.push_back(machine_of(rank) * workers_per_machine + i);
    }
    return ranks;
  }
  /// The sub-group `inter`: the workers with this rank's place in their machines.
  std::vector<unsigned> inter_ranks(unsigned rank) const {
    std::vector<unsigned> ranks;
    for (unsigned machine = 0; machine < machines; ++machine) {
      ranks.push_back(machine * workers_per_machine + rank % workers_per_machine);
    }
    return ranks;
  }
};

}  // namespace gradpress::comm
