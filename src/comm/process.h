// Who this process is among those of its job, as its launcher told it.
#pragma once

#include <gradpress/status.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "comm/store/socket.h"
#include "comm/topology.h"

namespace gradpress::comm {

/// Reads one variable; tests bring their own.
using Environment = std::function<std::optional<std::string>(std::string_view name)>;
/// The process's own variables.
Environment process_environment();

/// What the caller said itself: each goes before the environment.
struct ProcessArguments {
  std::optional<unsigned> rank = {};
  std::optional<unsigned> size = {};
  std::optional<unsigned> local_rank = {};
  std::optional<unsigned> local_size = {};
  std::string master_address = {};
  std::optional<unsigned> master_port = {};
  /// Where a store runs already; empty: rank 0 hosts one.
  std::string store = {};
  /// Who hosts `store`; none: a launcher.
  std::optional<unsigned> store_host = {};
  std::optional<unsigned> restart = {};
};

struct ProcessWorld {
  unsigned rank = 0;
  unsigned size = 1;
  unsigned local_rank = 0;
  unsigned local_size = 1;
  store::Address store = {};
  bool hosts_store = false;  ///< this process must open it
  /// The rank whose process hosts it; none: a launcher does.
  std::optional<unsigned> store_host = 0U;
  bool port_is_shared = false;  ///< the port is MASTER_PORT, which the launcher may hold itself
  unsigned restart = 0;         ///< keeps the keys of one attempt from those of the next
  std::string source = {};      ///< where rank and size came from: "RANK and WORLD_SIZE"

  Topology topology() const {
    return {.machines = size / local_size, .workers_per_machine = local_size};
  }
};

/// Rank and size come, both, from the first of these that has them; local rank and size from the
/// same, else 0 and 1:
///   1. the arguments
///   2. RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE                       torchrun, gradpress
///   3. OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE                Open MPI
///   4. PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS                 MPICH, Intel MPI
///   5. PMIX_RANK with SLURM_NTASKS; local ones as below                     srun --mpi=pmix
///   6. SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NTASKS_PER_NODE     srun
/// Arguments also replace single values of what the environment says.
/// The store: GRADPRESS_STORE=host:port when someone hosts one, else rank 0 does, at MASTER_ADDR
/// (127.0.0.1 where all ranks share a machine) and GRADPRESS_PORT, else MASTER_PORT, else 29500.
/// The restart count: GRADPRESS_RESTART, else TORCHELASTIC_RESTART_COUNT, else 0.
/// Errors: kInvalidArgument on variables that are missing, no numbers or do not fit each other,
///         naming them.
Result<ProcessWorld> find_process_world(const ProcessArguments& arguments,
                                        const Environment& environment);

/// "host:port", "[::1]:29500".
Result<store::Address> parse_address(std::string_view text);

}  // namespace gradpress::comm
