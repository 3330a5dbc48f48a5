#include <gradpress/world.h>

#include <array>
#include <utility>

#include "comm/gloo/gloo.h"
#include "comm/local/local.h"
#include "comm/mpi/mpi.h"
#include "comm/process.h"
#include "comm/store/server.h"
#include "comm/store/socket.h"

namespace gradpress {

namespace {

using comm::store::Socket;
using comm::store::StoreServer;

/// Where this process reaches the store that it hosts at `listener`.
Result<std::string> own_store(const WorldOptions& options, const Socket& listener,
                              const comm::Environment& environment) {
  if (!options.store.empty()) return options.store;
  auto address = comm::store::address_of(listener);
  if (!address) return tl::unexpected(address.error());
  if (address->host.empty()) {
    address->host = options.master_address.empty()
                        ? environment("MASTER_ADDR").value_or("127.0.0.1")
                        : options.master_address;
  }
  return address->text();
}

/// Starts the store at a socket from elsewhere; options.store becomes where it is.
Result<std::unique_ptr<StoreServer>> host_at(Socket listener, WorldOptions& options,
                                             const comm::Environment& environment) {
  if (Status status = comm::store::check_listening(listener); !status) {
    return fail(Code::kInvalidArgument, "world: store_listener: ", status.message());
  }
  auto store = own_store(options, listener, environment);
  if (!store) return tl::unexpected(store.error());
  options.store = std::move(*store);
  return StoreServer::serve(std::move(listener));
}

Result<World> connect_by_gloo(const WorldOptions& given, Socket listener,
                              const comm::Environment& environment) {
  WorldOptions options = given;
  std::unique_ptr<StoreServer> server;
  if (listener) {
    auto started = host_at(std::move(listener), options, environment);
    if (!started) return tl::unexpected(started.error());
    server = std::move(*started);
  }
  auto process = comm::find_process_world({.rank = options.rank,
                                           .size = options.size,
                                           .local_rank = options.local_rank,
                                           .local_size = options.local_size,
                                           .master_address = options.master_address,
                                           .master_port = options.master_port,
                                           .store = options.store,
                                           .store_host = options.store_host_rank,
                                           .restart = options.restart},
                                          environment);
  if (!process) return tl::unexpected(process.error());
  if (server) {
    if (options.store_host_rank.value_or(process->rank) != process->rank) {
      return fail(Code::kInvalidArgument, "world: rank ", process->rank,
                  " has a store_listener, but store_host_rank is ", *options.store_host_rank,
                  ": the rank that hosts the store is the one with the listener");
    }
    process->store_host = process->rank;
  }
  auto group = comm::connect_gloo({.world = *process,
                                   .name = options.name,
                                   .interface = options.interface.empty()
                                                    ? environment("GLOO_SOCKET_IFNAME").value_or("")
                                                    : options.interface,
                                   .patient = environment("GRADPRESS_PATIENT_GLOO").has_value(),
                                   .timeout = options.timeout,
                                   .start_timeout = options.start_timeout,
                                   .server = std::move(server)});
  if (!group) return tl::unexpected(group.error());
  const comm::Topology topology = process->topology();
  return World{.group = std::move(*group),
               .machines = topology.machines,
               .workers_per_machine = topology.workers_per_machine};
}

Result<World> connect_by_mpi(const WorldOptions& options, Socket /*listener*/,
                             const comm::Environment& environment) {
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
  Result<World> (*connect)(const WorldOptions&, Socket, const comm::Environment&);
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
  Socket listener(options.store_listener.value_or(-1));
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
  if (options.store_listener && !listener) {
    return fail(Code::kInvalidArgument, "world: store_listener: wanted a descriptor, got ",
                *options.store_listener);
  }
  return backend->connect(options, std::move(listener), comm::process_environment());
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
