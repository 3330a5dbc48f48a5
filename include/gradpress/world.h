// The world of a job whose workers are processes: the way from a launcher's variables to a Group.
#pragma once

#include <gradpress/api.h>
#include <gradpress/group.h>
#include <gradpress/status.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradpress {

/// What is not given comes from the environment, as torchrun, `gradpress launch`, mpirun or srun
/// set it: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, then those of
/// Open MPI, PMI and Slurm.
struct WorldOptions {
  /// "gloo" (TCP), "mpi", or "auto": the first of them that this build has. With mpi, rank, size
  /// and where the store is come from MPI itself, and not from what is given here.
  std::string backend = "auto";
  /// How long a peer may be silent in a collective before it counts as lost.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  /// How long to wait for the others to come.
  std::chrono::milliseconds start_timeout = std::chrono::seconds(120);
  std::optional<unsigned> rank = {};
  std::optional<unsigned> size = {};
  std::optional<unsigned> local_rank = {};
  std::optional<unsigned> local_size = {};
  /// Where rank 0 hosts the store at which all meet. GRADPRESS_PORT goes before MASTER_PORT, which
  /// torchrun holds itself.
  std::string master_address = {};
  std::optional<unsigned> master_port = {};
  /// "host:port" of a store that someone else hosts (GRADPRESS_STORE).
  std::string store = {};
  /// The rank whose process hosts `store`, so that ranks know whom they lost when it closes; none:
  /// a launcher does.
  std::optional<unsigned> store_host_rank = {};
  /// On one rank: the descriptor of a TCP socket that listens already. connect_world takes it over,
  /// on failure as well, and hosts the store there. The other ranks give its address as `store` and
  /// this rank as `store_host_rank`. So may this rank; without `store` it reaches its own store at
  /// the socket's address, or, where that is any address, at master_address (MASTER_ADDR, else
  /// 127.0.0.1). For ports that must not be guessed: bind to port 0, tell the others, hand over.
  std::optional<int> store_listener = {};
  /// Worlds of the same processes at the same time need different names.
  std::string name = "world";
  /// A world formed after a failed one needs another count than that had (GRADPRESS_RESTART, else
  /// TORCHELASTIC_RESTART_COUNT, else 0).
  std::optional<unsigned> restart = {};
  /// The network interface, such as eth0 (GLOO_SOCKET_IFNAME); else the one that reaches the store.
  std::string interface = {};
};

struct World {
  std::unique_ptr<Group> group = {};
  /// Ranks are numbered machine by machine.
  unsigned machines = 1;
  unsigned workers_per_machine = 1;
};

/// Forms the world together with all its other ranks, and returns when every one has come.
///
/// Rank 0's process hosts the store, unless the launcher does, for as long as any group of this
/// world lives in it. Destroy a world's groups before its process ends, and a failed world's before
/// the next one is formed.
/// Errors: kInvalidArgument on wrong variables, a backend that this build has not, or ranks that
///         disagree on the world; kPeerLost when some do not come, naming them.
GRADPRESS_API Result<World> connect_world(const WorldOptions& options);

/// A world whose workers are threads of this process.
struct LocalWorldOptions {
  unsigned workers = 4;
  unsigned workers_per_machine = 1;
  /// RATE[,LATENCY] between machines, emulated: "100mbit,50us". "unlimited": as fast as memory.
  std::string link = "unlimited";
  /// How long a peer may be silent in a collective before it counts as lost.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
};

/// One end per worker, by rank; each is for one worker's thread.
/// Errors: kInvalidArgument on a link that does not parse, no workers, more than 4096, or workers
///         that do not fill their machines.
GRADPRESS_API Result<std::vector<World>> make_local_worlds(const LocalWorldOptions& options);

/// The backends of connect_world that this build has.
GRADPRESS_API std::vector<std::string_view> world_backends();

}  // namespace gradpress
