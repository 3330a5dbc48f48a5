#include "comm/meeting.h"

#include <numeric>
#include <utility>
#include <vector>

#include "comm/store/roll_call.h"

namespace gradpress::comm {

namespace {

Status host_store(Meeting& meeting) {
  bool in_use = false;
  auto server = store::StoreServer::start(meeting.world.store, in_use);
  if (server) {
    meeting.server = std::move(*server);
    return {};
  }
  if (!in_use) return server.error();
  return Status::error(Code::kInvalidArgument,
                       "rank 0 cannot host the store: ", server.error().message(),
                       meeting.world.port_is_shared
                           ? "; the launcher (torchrun's agent) may hold MASTER_PORT itself: set "
                             "GRADPRESS_PORT to a free port on every rank"
                           : "; another program or an earlier world of this process holds the "
                             "port: choose another, or destroy that world first");
}

/// Short, however many the members are: it becomes part of keys.
std::string subgroup_name(const SubgroupOptions& options) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const unsigned rank : options.members) hash = (hash ^ rank) * 0x100000001B3U;
  return options.parent + "." + std::to_string(options.members.size()) + "-" +
         std::to_string(hash) + "#" + std::to_string(options.asked);
}

std::string ranks_text(std::span<const unsigned> ranks) {
  std::string text = "sub-group of ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

/// Connects, calls the roll and starts the watch. `closed`: whether it failed because the store was
/// closed meanwhile.
Status join(Meeting& meeting, const MeetingOptions& options, Time deadline, bool& closed) {
  const ProcessWorld& world = options.world;
  const auto left = [deadline] {
    return std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock().now());
  };
  auto client = store::StoreClient::connect(world.store, left());
  if (!client) return client.error();
  meeting.store = std::move(*client);
  // Both connections before the roll is called: once all have come, rank 0 may be done with this
  // world and close the store's port before another rank gets any further.
  auto watching = store::StoreClient::connect(world.store, left());
  if (!watching) return watching.error();

  std::vector<unsigned> members(world.size);
  std::iota(members.begin(), members.end(), 0U);
  std::string facts = options.backend;
  for (const auto& [number, word] :
       {std::pair(world.size, " ranks"), std::pair(world.local_size, " per machine")}) {
    facts.append(", ").append(std::to_string(number)).append(word);
  }
  const Status status = store::call_roll(*meeting.store, {.key = meeting.job + "/roll",
                                                          .what = options.name,
                                                          .members = members,
                                                          .rank = world.rank,
                                                          .facts = facts,
                                                          .patience = left()});
  closed = meeting.store->closed();
  if (!status.is_ok()) return status;

  auto watch = Watch::start(std::move(*watching),
                            {.job = meeting.job, .rank = world.rank, .host = world.store_host});
  if (!watch) return watch.error();
  meeting.watch = std::move(*watch);
  return {};
}

}  // namespace

Result<std::shared_ptr<Meeting>> meet(MeetingOptions options) {
  const Time deadline = steady_clock().now() + options.patience;
  const auto meeting = std::make_shared<Meeting>();
  meeting->world = options.world;
  meeting->job = options.name + "#" + std::to_string(options.world.restart);
  meeting->server = std::move(options.server);
  if (options.world.hosts_store && !meeting->server) {
    const Status status = host_store(*meeting);
    if (!status.is_ok()) return tl::unexpected(status);
  }
  while (true) {
    bool closed = false;
    const Status status = join(*meeting, options, deadline, closed);
    if (status.is_ok()) return meeting;
    // A store that closes under those who come was that of an earlier world, whose host has yet to
    // open the next one.
    if (!closed || steady_clock().now() >= deadline) return tl::unexpected(status);
  }
}

Result<std::string> meet_subgroup(Meeting& meeting, const SubgroupOptions& options) {
  std::string name = subgroup_name(options);
  const std::string ranks = ranks_text(options.members);
  const Status status = store::call_roll(*meeting.store, {.key = meeting.job + "/roll/" + name,
                                                          .what = ranks,
                                                          .members = options.members,
                                                          .rank = meeting.world.rank,
                                                          .facts = ranks,
                                                          .patience = options.patience});
  if (!status.is_ok()) return tl::unexpected(status);
  return name;
}

}  // namespace gradpress::comm
