// The backend `mpi`: every rank a process that mpirun, mpiexec or srun started.
#pragma once

#include <gradpress/group.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "comm/mpi/module.h"
#include "comm/process.h"
#include "comm/topology.h"

namespace gradpress::comm {

struct MpiOptions {
  std::string name = "world";
  /// Workers per machine; by default what the launcher says.
  std::optional<unsigned> local_size = {};
  /// How long a peer may be silent in a collective before it counts as lost.
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  /// How long to wait for the others to come.
  std::chrono::milliseconds start_timeout = std::chrono::seconds(120);
};

struct MpiWorld {
  std::unique_ptr<Group> group = {};
  Topology topology = {};
};

/// Opens the module of the MPI that started this process: libgradpress_mpi_openmpi.so when there is
/// OMPI_COMM_WORLD_RANK or PMIX_RANK, libgradpress_mpi_mpich.so when there is PMI_RANK; looked for
/// beside the library or program, one folder up, and where libraries are installed. The variable
/// GRADPRESS_MPI_MODULE names another file. Opened once per process, and never closed. It calls its
/// own MPI whatever other one the process has loaded.
/// Errors: kInvalidArgument when no MPI started this process or the module is not there, naming the
///         package; the module's own.
Result<MpiModule*> open_mpi_module(const Environment& environment);

/// Whether there is a module that open_mpi_module could open, of whichever MPI.
bool has_mpi();

/// This process's end of the world; every rank calls it, and again for a further world. Rank 0
/// hosts the store at its own address; the others learn it by an MPI broadcast. Errors:
/// open_mpi_module's; kPeerLost when ranks do not come.
Result<MpiWorld> connect_mpi(const MpiOptions& options, const Environment& environment);

}  // namespace gradpress::comm
