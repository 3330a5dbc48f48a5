#include "comm/mpi/mpi.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <gradpress/version.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "comm/meeting.h"
#include "comm/mpi/transport.h"
#include "comm/store/client.h"
#include "comm/store/server.h"
#include "comm/transport_group.h"

namespace gradpress::comm {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModuleVariable = "GRADPRESS_MPI_MODULE";
/// One try at one of several addresses: the one that does not lead there must not use up the time.
constexpr std::chrono::milliseconds kTry = std::chrono::seconds(2);
/// What rank 0 tells the others: "PORT ADDRESS ADDRESS …", or "!" and why it cannot.
using Notice = std::array<char, 1024>;

/// One MPI implementation, and how to tell that it started this process.
struct Implementation {
  std::string_view module;
  std::string_view package;
  std::array<std::string_view, 2> variables;
};
constexpr std::array kImplementations = {
    Implementation{
        "libgradpress_mpi_openmpi.so", "libopenmpi-dev", {"OMPI_COMM_WORLD_RANK", "PMIX_RANK"}},
    Implementation{"libgradpress_mpi_mpich.so", "libmpich-dev", {"PMI_RANK", "PMI_RANK"}}};

/// The folder of the library or program that this code is in.
fs::path own_folder() {
  Dl_info info{};
  // Any object of ours tells; this one has an address.
  if (dladdr(&kImplementations, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  return fs::canonical(info.dli_fname, ignored).parent_path();
}

std::array<fs::path, 3> module_folders() {
  const fs::path own = own_folder();
  return {own, own.parent_path(), own.parent_path() / GRADPRESS_INSTALL_LIBDIR};
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

Result<fs::path> find_module(const Environment& environment) {
  if (const auto given = environment(kModuleVariable); given && !given->empty()) {
    if (is_file(*given)) return fs::path(*given);
    return fail(Code::kInvalidArgument, kModuleVariable, "=", *given,
                ": wanted the file of a gradpress MPI module, there is none");
  }
  const auto started = [&](const Implementation& one) {
    return std::ranges::any_of(
        one.variables, [&](std::string_view name) { return environment(name).has_value(); });
  };
  const auto found = std::ranges::find_if(kImplementations, started);
  if (found == kImplementations.end()) {
    return fail(Code::kInvalidArgument,
                "backend mpi: no MPI started this process (no OMPI_COMM_WORLD_RANK, PMIX_RANK or "
                "PMI_RANK); start the program with mpirun, mpiexec or srun");
  }
  std::string looked;
  for (const fs::path& folder : module_folders()) {
    if (is_file(folder / found->module)) return folder / found->module;
    looked.append(looked.empty() ? "" : ", ").append(folder.string());
  }
  return fail(Code::kInvalidArgument, "backend mpi: no ", found->module, " in ", looked,
              "; install ", found->package, " (Debian) and build gradpress from source, or set ",
              kModuleVariable, " to a module's file");
}

Result<MpiModule*> load(const fs::path& file) {
  // Global, because MPI opens plug-ins of its own that look for its symbols.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    return fail(Code::kInvalidArgument, "backend mpi: cannot open ", file.string(), ": ",
                std::string_view(dlerror()));
  }
  auto* const entry = reinterpret_cast<MpiModuleEntry*>(dlsym(library, kMpiModuleEntry));
  if (entry == nullptr) {
    return fail(Code::kInvalidArgument, "backend mpi: ", file.string(),
                " is no gradpress MPI module: it has no ", kMpiModuleEntry);
  }
  Result<MpiModule*> module = nullptr;
  entry(version(), module);
  if (!module) {
    return fail(module.error().code(), "backend mpi, ", file.string(), ": ",
                module.error().message());
  }
  return module;
}

/// Waits for what all ranks do together while the world is formed.
Status finish(MpiPort& port, MpiRequest request, std::string_view what, Time deadline) {
  MpiNap nap;
  Mutex mutex;
  CondVar nobody;
  while (true) {
    const auto done = port.test(request);
    if (!done) return done.error();
    if (*done) return {};
    if (steady_clock().now() >= deadline) {
      port.abandon();
      return Status::error(Code::kPeerLost, "world, ", what,
                           ": not all ranks have come in time; every rank must connect");
    }
    const MutexLock lock(mutex);
    steady_clock().wait_until(nobody, mutex, steady_clock().now() + nap.next());
  }
}

/// This machine's addresses that others may reach: of one interface, or of all that are up.
std::vector<std::string> own_addresses(std::string_view interface) {
  std::vector<std::string> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (!interface.empty() && interface != one->ifa_name) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    if (inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size()) != nullptr) {
      found.emplace_back(text.data());
    }
  }
  freeifaddrs(all);
  return found;
}

/// Where the others find the store that rank 0 is about to host.
std::vector<std::string> store_hosts(const ProcessWorld& world, const Environment& environment) {
  if (const auto master = environment("MASTER_ADDR"); master && !master->empty()) return {*master};
  if (world.local_size == world.size) return {"127.0.0.1"};
  return own_addresses(environment("GLOO_SOCKET_IFNAME").value_or(""));
}

/// At rank 0: hosts the store and says where.
Result<std::unique_ptr<store::StoreServer>> host_store(const std::vector<std::string>& hosts,
                                                       std::string& notice) {
  if (hosts.empty()) {
    return fail(Code::kInvalidArgument,
                "world: rank 0 has no IPv4 address that others could reach; set MASTER_ADDR, or "
                "GLOO_SOCKET_IFNAME to an interface that has one");
  }
  bool in_use = false;
  auto server = store::StoreServer::start(
      {.host = hosts.size() == 1 ? hosts[0] : std::string("0.0.0.0"), .port = 0}, in_use);
  if (!server) return server;
  notice = std::to_string((*server)->port());
  for (const std::string& host : hosts) {
    if (notice.size() + host.size() + 1 < Notice().size()) notice.append(" ").append(host);
  }
  return server;
}

/// Of the addresses that rank 0 told the one that leads there.
Result<store::Address> reachable_store(std::string_view notice, Time deadline) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < notice.size();) {
    const std::size_t end = std::min(notice.find(' ', at), notice.size());
    words.emplace_back(notice.substr(at, end - at));
    at = end + 1;
  }
  if (words.size() < 2) return fail(Code::kInternal, "world: rank 0 told of no store");
  const auto port = static_cast<unsigned>(std::stoul(words[0]));
  if (words.size() == 2) return store::Address{.host = words[1], .port = port};
  while (true) {
    for (std::size_t i = 1; i < words.size(); ++i) {
      const store::Address address{.host = words[i], .port = port};
      const auto client = store::StoreClient::connect(address, kTry);
      if (client) return address;
      if (steady_clock().now() >= deadline) return tl::unexpected(client.error());
    }
  }
}

/// Rank and size are MPI's own; the launcher's variables say who shares a machine.
Result<ProcessWorld> process_world(const MpiPort& port, const MpiOptions& options,
                                   const Environment& environment) {
  ProcessArguments arguments{.rank = port.rank(),
                             .size = port.size(),
                             .local_size = options.local_size,
                             // Rank 0 says by MPI where its store is: none is to be found here.
                             .store = "127.0.0.1:1"};
  if (options.local_size) arguments.local_rank = port.rank() % std::max(1U, *options.local_size);
  auto world = find_process_world(arguments, environment);
  if (world) world->store_host = 0U;
  return world;
}

}  // namespace

Result<MpiModule*> open_mpi_module(const Environment& environment) {
  static Mutex mutex;
  static MpiModule* opened = nullptr;
  const MutexLock lock(mutex);
  if (opened != nullptr) return opened;
  const auto file = find_module(environment);
  if (!file) return tl::unexpected(file.error());
  auto module = load(*file);
  if (module) opened = *module;
  return module;
}

bool has_mpi() {
  for (const fs::path& folder : module_folders()) {
    for (const Implementation& one : kImplementations) {
      if (is_file(folder / one.module)) return true;
    }
  }
  return false;
}

Result<MpiWorld> connect_mpi(const MpiOptions& options, const Environment& environment) {
  const auto module = open_mpi_module(environment);
  if (!module) return tl::unexpected(module.error());
  const Time deadline = steady_clock().now() + options.start_timeout;
  auto opening = (*module)->open();
  if (!opening) return tl::unexpected(opening.error());
  std::unique_ptr<MpiPort> port = std::move(opening->port);
  Status status = finish(*port, opening->request, "forming a communicator", deadline);
  if (!status.is_ok()) return tl::unexpected(status);
  auto world = process_world(*port, options, environment);
  if (!world) return tl::unexpected(world.error());

  Notice notice{};
  std::unique_ptr<store::StoreServer> server;
  if (port->rank() == 0) {
    std::string text;
    auto hosted = host_store(store_hosts(*world, environment), text);
    if (hosted) {
      server = std::move(*hosted);
    } else {
      text = "!" + hosted.error().message();
    }
    text.copy(notice.data(), notice.size() - 1);
  }
  auto request = port->broadcast(std::as_writable_bytes(std::span(notice)));
  if (!request) return tl::unexpected(request.error());
  status = finish(*port, *request, "learning where the store is", deadline);
  if (!status.is_ok()) return tl::unexpected(status);
  const std::string_view told = notice.data();
  if (told.starts_with('!')) return fail(Code::kInvalidArgument, told.substr(1));
  const auto address = reachable_store(told, deadline);
  if (!address) return tl::unexpected(address.error());
  world->store = *address;

  auto meeting = meet(
      {.world = *world, .name = options.name, .backend = "mpi", .patience = options.start_timeout});
  if (!meeting) return tl::unexpected(meeting.error());
  (*meeting)->server = std::move(server);
  MpiTransport::Options end{.meeting = std::move(*meeting),
                            .group = "world",
                            .members = std::vector<unsigned>(port->size()),
                            .start_timeout = options.start_timeout};
  std::iota(end.members.begin(), end.members.end(), 0U);
  return MpiWorld{
      .group = std::make_unique<TransportGroup>(
          std::make_unique<MpiTransport>(std::move(port), std::move(end)), options.timeout),
      .topology = world->topology()};
}

}  // namespace gradpress::comm
