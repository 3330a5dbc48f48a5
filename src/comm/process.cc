#include "comm/process.h"

#include <unistd.h>

#include <array>
#include <charconv>
#include <utility>

namespace gradpress::comm {

namespace {

constexpr unsigned kDefaultPort = 29500;
constexpr unsigned kMostRanks = 1U << 20;

/// The variables of one kind of launcher.
struct Family {
  std::string_view rank;
  std::string_view size;
  std::string_view local_rank;
  std::string_view local_size;
};
constexpr std::array kFamilies = {
    Family{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    Family{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
           "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Family{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    Family{"PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
    Family{"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"}};

std::optional<unsigned> parse_number(std::string_view text, unsigned most) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > most) return std::nullopt;
  return value;
}

/// Reads variables as numbers, and keeps the first error.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  std::string text(std::string_view name) const { return environment_(name).value_or(""); }
  bool has(std::string_view name) const { return environment_(name).has_value(); }
  std::optional<unsigned> number(std::string_view name, unsigned most = kMostRanks) {
    const auto value = environment_(name);
    if (!value) return std::nullopt;
    const auto parsed = parse_number(*value, most);
    if (!parsed && status_.is_ok()) {
      status_ = Status::error(Code::kInvalidArgument, "environment: ", name,
                              ": wanted a whole number up to ", most, ", got \"", *value, "\"");
    }
    return parsed;
  }
  const Status& status() const { return status_; }

 private:
  const Environment& environment_;
  Status status_;
};

void find_ranks(const ProcessArguments& arguments, Variables& variables, ProcessWorld& world) {
  for (const Family& family : kFamilies) {
    if (!variables.has(family.rank) || !variables.has(family.size)) continue;
    world.rank = variables.number(family.rank).value_or(0);
    world.size = variables.number(family.size).value_or(1);
    world.local_rank = variables.number(family.local_rank).value_or(0);
    world.local_size = variables.number(family.local_size).value_or(1);
    world.source = std::string(family.rank) + " and " + std::string(family.size);
    break;
  }
  if (arguments.rank && arguments.size) world.source = "the arguments";
  world.rank = arguments.rank.value_or(world.rank);
  world.size = arguments.size.value_or(world.size);
  world.local_rank = arguments.local_rank.value_or(world.local_rank);
  world.local_size = arguments.local_size.value_or(world.local_size);
}

Status check_ranks(const ProcessWorld& world) {
  const auto wrong = [](const auto&... parts) {
    return Status::error(Code::kInvalidArgument, "world: ", parts...);
  };
  if (world.source.empty()) {
    return wrong(
        "no rank and size: wanted RANK and WORLD_SIZE, or those of mpirun or srun, or arguments; "
        "start the program with gradpress launch, torchrun, mpirun or srun");
  }
  if (world.size == 0 || world.rank >= world.size) {
    return wrong("rank ", world.rank, " in a world of ", world.size, " (from ", world.source, ")");
  }
  if (world.local_size == 0 || world.size % world.local_size != 0) {
    return wrong(world.size, " ranks do not fill machines of ", world.local_size,
                 "; set LOCAL_WORLD_SIZE to 1 to count every rank as a machine");
  }
  if (world.local_size > 1 && world.rank % world.local_size != world.local_rank) {
    return wrong("rank ", world.rank, " is number ", world.local_rank, " of ", world.local_size,
                 " on its machine: ranks must be numbered machine by machine (mpirun --map-by "
                 "slot, srun --distribution=block)");
  }
  return {};
}

Status find_store(const ProcessArguments& arguments, Variables& variables, ProcessWorld& world) {
  const std::string external =
      arguments.store.empty() ? variables.text("GRADPRESS_STORE") : arguments.store;
  if (!external.empty()) {
    const auto address = parse_address(external);
    if (!address) return address.error();
    world.store = *address;
    world.store_host = arguments.store_host;
    if (world.store_host && *world.store_host >= world.size) {
      return Status::error(Code::kInvalidArgument, "world: store_host_rank ", *world.store_host,
                           " in a world of ", world.size);
    }
    return {};
  }
  constexpr unsigned kMostPort = 65535;
  const auto own = variables.number("GRADPRESS_PORT", kMostPort);
  const auto master =
      arguments.master_port ? arguments.master_port : variables.number("MASTER_PORT", kMostPort);
  world.store.port = own ? *own : master.value_or(kDefaultPort);
  world.port_is_shared = !own.has_value() && !arguments.master_port.has_value();
  world.hosts_store = world.rank == 0;
  world.store.host =
      arguments.master_address.empty() ? variables.text("MASTER_ADDR") : arguments.master_address;
  if (world.store.host.empty()) {
    if (world.local_size != world.size) {
      return Status::error(Code::kInvalidArgument, "world: ", world.size / world.local_size,
                           " machines and no MASTER_ADDR: set it to the address of rank 0's "
                           "machine on all of them");
    }
    world.store.host = "127.0.0.1";
  }
  return {};
}

}  // namespace

Environment process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      if (text.size() > name.size() && text[name.size()] == '=' && text.starts_with(name)) {
        return std::string(text.substr(name.size() + 1));
      }
    }
    return std::nullopt;
  };
}

Result<ProcessWorld> find_process_world(const ProcessArguments& arguments,
                                        const Environment& environment) {
  Variables variables(environment);
  ProcessWorld world;
  find_ranks(arguments, variables, world);
  if (!variables.status().is_ok()) return tl::unexpected(variables.status());
  Status status = check_ranks(world);
  if (!status.is_ok()) return tl::unexpected(status);
  status = find_store(arguments, variables, world);
  if (!status.is_ok()) return tl::unexpected(status);
  for (const std::string_view name : {"GRADPRESS_RESTART", "TORCHELASTIC_RESTART_COUNT"}) {
    if (!variables.has(name)) continue;
    world.restart = variables.number(name, 1U << 30).value_or(0);
    break;
  }
  world.restart = arguments.restart.value_or(world.restart);
  if (!variables.status().is_ok()) return tl::unexpected(variables.status());
  return world;
}

Result<store::Address> parse_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && colon > 0) {
    const auto port = parse_number(text.substr(colon + 1), 65535);
    std::string_view host = text.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    if (port && *port > 0 && !host.empty()) {
      return store::Address{.host = std::string(host), .port = *port};
    }
  }
  return fail(Code::kInvalidArgument, "address \"", text, "\": wanted host:port");
}

}  // namespace gradpress::comm
