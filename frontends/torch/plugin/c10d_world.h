// The way from a c10d process group to a Group.
#pragma once

#include <gradpress/world.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace gradpress::plugin {

struct C10dOptions {
  /// Sends and receives tensors in host memory, and nobody else's with the same tags meanwhile.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group = {};
  /// Rank 0's: where the others reach this machine.
  std::string address = "127.0.0.1";
  /// "host:port" of a store that someone else hosts; empty: rank 0 hosts one.
  std::string store = {};
  /// Worlds that meet at one store need different names.
  std::string name = "world";
  /// Ranks are numbered machine by machine, so many on each.
  unsigned local_size = 1;
  /// How long a peer may be silent in a collective before it counts as lost.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  /// How long to wait for the others to come.
  std::chrono::milliseconds start_timeout = std::chrono::seconds(120);
};

/// This rank's end of a group of all the process group's ranks. Every rank calls it.
///
/// Collectives are our schedules over the process group's send and recv, so that all of them are
/// there whatever the process group lacks. Beside it, rank 0 hosts a small store by which ranks
/// find out who is to blame when a call ends badly.
/// Errors: kInvalidArgument on a local size that does not divide the ranks; kPeerLost when some do
///         not come.
Result<World> connect_c10d(const C10dOptions& options);

}  // namespace gradpress::plugin
