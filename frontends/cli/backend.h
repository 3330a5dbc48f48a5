// The backend flags, the same on every verb that runs collectives, and the worlds they ask for.
#pragma once

#include <gradpress/group.h>

#include <CLI/App.hpp>
#include <memory>
#include <string>
#include <vector>

#include "comm/local/link.h"
#include "comm/topology.h"

namespace gradpress::cli {

struct BackendFlags {
  std::string backend = "local";
  std::string link = "unlimited";
  unsigned workers = 0;     ///< 0: local 4, elsewhere what the launcher started
  unsigned local_size = 0;  ///< 0: local 1, elsewhere what the launcher says
  double timeout_s = 30.0;
};
void add_backend_flags(CLI::App& verb, BackendFlags& flags);

/// The ends that live in this process, one per worker: all of a local world, one of the others.
struct BackendWorld {
  std::vector<std::unique_ptr<Group>> ends = {};
  comm::Topology topology = {};
  /// Between machines: emulated on local; elsewhere what the caller says that it is, for the
  /// bounds.
  comm::Link link = {};
  std::string backend = {};

  /// Whether this process is the one that prints.
  bool speaks() const { return ends.front()->rank() == 0; }
  bool emulated() const { return backend == "local"; }
};

/// Errors: kInvalidArgument on flags that do not fit each other or the launcher's variables; the
///         backend's own.
Result<BackendWorld> make_world(const BackendFlags& flags);

/// 2 for wrong input, 3 for a lost peer, 1 for all else.
int exit_code_of(const Status& status);

}  // namespace gradpress::cli
