#include "backend.h"

#include <gradpress/world.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <utility>

#include "comm/local/local.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

constexpr unsigned kLocalWorkers = 4;

std::chrono::milliseconds timeout_of(const BackendFlags& flags) {
  return std::chrono::milliseconds(std::llround(flags.timeout_s * 1e3));
}

Result<BackendWorld> local_world(const BackendFlags& flags, const comm::Link& link) {
  const unsigned workers = flags.workers == 0 ? kLocalWorkers : flags.workers;
  const unsigned local_size = flags.local_size == 0 ? 1 : flags.local_size;
  if (workers % local_size != 0) {
    return fail(Code::kInvalidArgument, workers, " workers do not fill machines of ", local_size);
  }
  const comm::Topology topology{.machines = workers / local_size,
                                .workers_per_machine = local_size};
  auto ends =
      comm::make_local_world({.topology = topology, .inter = link, .timeout = timeout_of(flags)});
  if (!ends) return tl::unexpected(ends.error());
  return BackendWorld{.ends = std::move(*ends), .topology = topology, .link = link};
}

Result<BackendWorld> process_world(const BackendFlags& flags, const comm::Link& link) {
  WorldOptions options{.backend = flags.backend, .timeout = timeout_of(flags)};
  if (flags.local_size != 0) options.local_size = flags.local_size;
  auto connected = connect_world(options);
  if (!connected) return tl::unexpected(connected.error());
  BackendWorld world{.topology = {.machines = connected->machines,
                                  .workers_per_machine = connected->workers_per_machine},
                     .link = link};
  world.ends.push_back(std::move(connected->group));
  return world;
}

}  // namespace

void add_backend_flags(CLI::App& verb, BackendFlags& flags) {
  verb.add_option(
          "--backend", flags.backend,
          "local (threads of this process), gloo or mpi (processes that a launcher started)")
      ->capture_default_str();
  verb.add_option("--workers", flags.workers,
                  "workers in all; default: 4 on local, else what the launcher started")
      ->check(CLI::Range(1U, 4096U));
  verb.add_option("--local-size", flags.local_size,
                  "workers per machine; default: 1 on local, else what the launcher says")
      ->check(CLI::Range(1U, 4096U));
  verb.add_option(
          "--link", flags.link,
          "RATE[,LATENCY] between machines, such as 1gbit,50us: emulated on local, else what "
          "the bounds are computed from")
      ->capture_default_str();
  verb.add_option("--timeout", flags.timeout_s, "seconds that a peer may be silent")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
}

Result<BackendWorld> make_world(const BackendFlags& flags) {
  const auto link = comm::parse_link(flags.link);
  if (!link) return tl::unexpected(link.error());
  if (flags.backend != "local" && flags.backend != "gloo" && flags.backend != "mpi") {
    return fail(Code::kInvalidArgument, "backend \"", flags.backend,
                "\": wanted local, gloo or mpi");
  }
  auto world = flags.backend == "local" ? local_world(flags, *link) : process_world(flags, *link);
  if (!world) return world;
  world->backend = flags.backend;
  if (flags.workers != 0 && flags.workers != world->topology.workers()) {
    return fail(Code::kInvalidArgument, "--workers ", flags.workers, ", but the launcher started ",
                world->topology.workers());
  }
  return world;
}

int exit_code_of(const Status& status) {
  if (status.code() == Code::kInvalidArgument) return kUsage;
  return status.code() == Code::kPeerLost ? ExitCode::kPeerLost : kFailed;
}

}  // namespace gradpress::cli
