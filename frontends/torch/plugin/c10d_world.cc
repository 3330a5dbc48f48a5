#include "c10d_world.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "c10d_transport.h"
#include "comm/meeting.h"
#include "comm/transport_group.h"

namespace gradpress::plugin {

namespace {

/// What rank 0 tells the others: "HOST:PORT", or "!" and why it cannot.
using Notice = std::array<char, 1024>;

std::string host_store(const C10dOptions& options,
                       std::unique_ptr<comm::store::StoreServer>& server) {
  bool in_use = false;
  auto started = comm::store::StoreServer::start({.host = options.address, .port = 0}, in_use);
  if (!started) return "!" + started.error().message();
  server = std::move(*started);
  const bool six = options.address.find(':') != std::string::npos;
  const std::string host = six ? "[" + options.address + "]" : options.address;
  return host + ":" + std::to_string(server->port());
}

Status tell(const C10dOptions& options, Notice& notice) {
  try {
    std::vector<at::Tensor> tensors{at::from_blob(
        notice.data(), {static_cast<std::int64_t>(notice.size())}, at::TensorOptions(at::kByte))};
    if (options.process_group->broadcast(tensors, {})->wait(options.start_timeout)) return {};
    return Status::error(Code::kPeerLost, "backend c10d: the first broadcast was given up");
  } catch (const std::exception& error) {
    return Status::error(
        Code::kPeerLost, "backend c10d: learning from rank 0 where its store is: ", error.what(),
        "; every rank of the process group must take part, and it must carry tensors in host "
        "memory");
  }
}

/// Where all meet: given, or hosted by rank 0, which tells the others.
Result<comm::store::Address> find_store(const C10dOptions& options,
                                        std::unique_ptr<comm::store::StoreServer>& server) {
  if (!options.store.empty()) return comm::parse_address(options.store);
  Notice notice{};
  if (options.process_group->getRank() == 0) {
    host_store(options, server).copy(notice.data(), notice.size() - 1);
  }
  const Status told = tell(options, notice);
  if (!told.is_ok()) return tl::unexpected(told);
  const std::string_view text = notice.data();
  if (text.starts_with('!')) {
    return fail(Code::kInvalidArgument,
                "backend c10d: rank 0 cannot host a store: ", text.substr(1));
  }
  return comm::parse_address(text);
}

}  // namespace

Result<World> connect_c10d(const C10dOptions& options) {
  const auto rank = static_cast<unsigned>(options.process_group->getRank());
  const auto size = static_cast<unsigned>(options.process_group->getSize());
  if (options.local_size == 0 || size % options.local_size != 0) {
    return fail(Code::kInvalidArgument,
                "backend c10d: wanted a number of workers per machine that "
                "divides the ",
                size, " ranks, got ", options.local_size);
  }
  std::unique_ptr<comm::store::StoreServer> server;
  auto address = find_store(options, server);
  if (!address) return tl::unexpected(address.error());
  comm::MeetingOptions coming;
  coming.name = options.name;
  coming.backend = "c10d";
  coming.patience = options.start_timeout;
  comm::ProcessWorld& process = coming.world;
  process.rank = rank;
  process.size = size;
  process.local_rank = rank % options.local_size;
  process.local_size = options.local_size;
  process.store = std::move(*address);
  if (!options.store.empty()) process.store_host.reset();
  process.source = "the process group";
  auto meeting = comm::meet(std::move(coming));
  if (!meeting) return tl::unexpected(meeting.error());
  (*meeting)->server = std::move(server);
  C10dTransport::Options end{.process_group = options.process_group,
                             .meeting = std::move(*meeting),
                             .group = "world",
                             .members = std::vector<unsigned>(size),
                             .rank = rank,
                             .start_timeout = options.start_timeout};
  std::iota(end.members.begin(), end.members.end(), 0U);
  return World{.group = std::make_unique<comm::TransportGroup>(
                   std::make_unique<C10dTransport>(std::move(end)), options.timeout),
               .machines = size / options.local_size,
               .workers_per_machine = options.local_size};
}

}  // namespace gradpress::plugin
