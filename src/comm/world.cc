#include <gradpress/world.h>

#include <array>
#include <utility>

#include "comm/gloo/gloo.h"
#include "comm/local/local.h"
#include "comm/mpi/mpi.h"
#include "comm/process.h"

namespace gradpress {

namespace {

Result<World> connect_by_gloo(const WorldOptions& options, const comm::Environment& environment) {
  const auto process = comm::find_process_world({.rank = options.rank,
                                                 .size = options.size,
                                                 .local_rank = options.local_rank,
                                                 .local_size = options.local_size,
                                                 .master_address = options.master_address,
                                                 .master_port = options.master_port,
                                                 .store = options.store,
                                                 .restart = options.restart},
                                                environment);
  if (!process) return tl::unexpected(process.error());
  auto group = comm::connect_gloo({.world = *process,
                                   .name = options.name,
                                   .interface = options.interface.empty()
                                                    ? environment("GLOO_SOCKET_IFNAME").value_or("")
                                                    : options.interface,
                                   .patient = environment("GRADPRESS_PATIENT_GLOO").has_value(),
                                   .timeout = options.timeout,
                                   .start_timeout = options.start_timeout});
  if (!group) return tl::unexpected(group.error());
  const comm::Topology topology = process->topology();
  return World{.group = std::move(*group),
               .machines = topology.machines,
               .workers_per_machine = topology.workers_per_machine};
}

Result<World> connect_by_mpi(const WorldOptions& options, const comm::Environment& environment) {
  auto made = comm::connect_mpi({.name = options.name,
                                 .local_size = options.local_size,
                                 .timeout = options.timeout,
                                 .start_timeout = options.start_timeout},
                                environment);
  if (!made) return tl::unexpected(made.error());
  return World{.group = std::move(made->group),
               .machines = made->topology.machines,
               .workers_per_machine = made->topology.workers_per_machine};
}

struct Backend {
  std::string_view name;
  bool (*present)();
  Result<World> (*connect)(const WorldOptions&, const comm::Environment&);
};
/// The first that is there is `auto`.
constexpr std::array kBackends = {Backend{"gloo", comm::has_gloo, connect_by_gloo},
                                  Backend{"mpi", comm::has_mpi, connect_by_mpi}};

Result<Backend> chosen_backend(const std::string& name) {
  std::string known;
  for (const Backend& backend : kBackends) {
    if (name == backend.name || (name == "auto" && backend.present())) return backend;
    known.append(", ").append(backend.name);
  }
  if (name == "auto") return kBackends[0];  // says itself what is missing
  return fail(Code::kInvalidArgument, "backend \"", name, "\": wanted auto", known);
}

}  // namespace

std::vector<std::string_view> world_backends() {
  std::vector<std::string_view> names;
  for (const Backend& backend : kBackends) {
    if (backend.present()) names.push_back(backend.name);
  }
  return names;
}

Result<World> connect_world(const WorldOptions& options) {
  const auto backend = chosen_backend(options.backend);
  if (!backend) return tl::unexpected(backend.error());
  if (options.timeout.count() <= 0 || options.start_timeout.count() <= 0) {
    return fail(Code::kInvalidArgument, "world: wanted timeouts above 0 ms, got ",
                options.timeout.count(), " and ", options.start_timeout.count(), " ms");
  }
  if (options.name.empty() || options.name.find('/') != std::string::npos) {
    return fail(Code::kInvalidArgument, "world: wanted a name without a slash, got \"",
                options.name, "\"");
  }
  return backend->connect(options, comm::process_environment());
}

Result<std::vector<World>> make_local_worlds(const LocalWorldOptions& options) {
  const auto link = comm::parse_link(options.link);
  if (!link) return tl::unexpected(link.error());
  const unsigned per_machine = options.workers_per_machine;
  if (per_machine == 0 || options.workers % per_machine != 0) {
    return fail(Code::kInvalidArgument, options.workers, " workers do not fill machines of ",
                per_machine);
  }
  const comm::Topology topology{.machines = options.workers / per_machine,
                                .workers_per_machine = per_machine};
  auto ends =
      comm::make_local_world({.topology = topology, .inter = *link, .timeout = options.timeout});
  if (!ends) return tl::unexpected(ends.error());
  std::vector<World> worlds;
  for (auto& end : *ends) {
    worlds.push_back({.group = std::move(end),
                      .machines = topology.machines,
                      .workers_per_machine = topology.workers_per_machine});
  }
  return worlds;
}

}  // namespace gradpress
