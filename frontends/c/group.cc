#include "group.h"

#include <gradpress/group.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "options.h"

namespace gradpress::c_api {

namespace {

static_assert(GRADPRESS_BARRIER == static_cast<int>(CollectiveKind::kBarrier));
static_assert(GRADPRESS_BROADCAST == static_cast<int>(CollectiveKind::kBroadcast));
static_assert(GRADPRESS_BFLOAT16 == static_cast<int>(DataType::kBfloat16));
static_assert(GRADPRESS_FLOAT32 == static_cast<int>(DataType::kFloat32));

std::unique_ptr<gradpress_group> make_handle(World world) {
  auto handle = std::make_unique<gradpress_group>();
  handle->backend = world.group->backend();
  handle->world = std::move(world);
  return handle;
}

Status read_world(const plan::Field& object, WorldOptions& options) {
  OptionReader reader(object);
  std::optional<unsigned> listener;
  reader.read("backend", options.backend);
  reader.read_whole("rank", options.rank);
  reader.read_whole("size", options.size);
  reader.read_whole("local_rank", options.local_rank);
  reader.read_whole("local_size", options.local_size);
  reader.read("master_address", options.master_address);
  reader.read_whole("master_port", options.master_port);
  reader.read("store", options.store);
  reader.read_whole("store_listener", listener);
  reader.read_whole("store_host_rank", options.store_host_rank);
  reader.read("name", options.name);
  reader.read_whole("restart", options.restart);
  reader.read("interface", options.interface);
  reader.read("timeout_s", options.timeout);
  reader.read("start_timeout_s", options.start_timeout);
  if (listener) options.store_listener = static_cast<int>(*listener);
  return reader.finish();
}

Result<WorldOptions> world_options(const char* text) {
  const auto json = parse_json(text, "options", Json::object());
  if (!json) return tl::unexpected(json.error());
  WorldOptions options;
  if (Status status = read_world(plan::Field(*json, "options"), options); !status) {
    return tl::unexpected(status);
  }
  return options;
}

Result<LocalWorldOptions> local_options(const char* text, std::size_t count) {
  const auto json = parse_json(text, "options", Json::object());
  if (!json) return tl::unexpected(json.error());
  constexpr std::size_t kMostWorkers = 4096;
  LocalWorldOptions options{.workers = static_cast<unsigned>(std::min(count, kMostWorkers + 1)),
                            .workers_per_machine = 1};
  const plan::Field object(*json, "options");
  OptionReader reader(object);
  reader.read_whole("workers_per_machine", options.workers_per_machine, 1);
  reader.read("link", options.link);
  reader.read("timeout_s", options.timeout);
  if (Status status = reader.finish(); !status) return tl::unexpected(status);
  return options;
}

/// How the members are spread over the parent's machines; where they do not fill machines evenly,
/// each counts as one.
World spread(const World& parent, std::span<const unsigned> ranks) {
  std::vector<unsigned> machines;
  for (const unsigned rank : ranks) machines.push_back(rank / parent.workers_per_machine);
  const auto run = static_cast<std::size_t>(
      std::ranges::find_if(machines, [&](unsigned m) { return m != machines.front(); }) -
      machines.begin());
  bool even = ranks.size() % run == 0;
  std::vector<unsigned> seen;
  for (std::size_t i = 0; even && i < machines.size(); ++i) {
    if (i % run != 0) {
      even = machines[i] == machines[i - 1];
    } else {
      even = std::ranges::find(seen, machines[i]) == seen.end();
      seen.push_back(machines[i]);
    }
  }
  const std::size_t per_machine = even ? run : 1;
  return {.machines = static_cast<unsigned>(ranks.size() / per_machine),
          .workers_per_machine = static_cast<unsigned>(per_machine)};
}

Result<Collective> collective_of(const gradpress_call& call) {
  if (call.struct_size != sizeof(gradpress_call)) {
    return tl::unexpected(
        wrong("call: struct_size: wanted ", sizeof(gradpress_call), ", got ", call.struct_size));
  }
  if (call.kind < GRADPRESS_ALL_REDUCE || call.kind > GRADPRESS_BARRIER) {
    return tl::unexpected(
        wrong("call: kind: wanted GRADPRESS_ALL_REDUCE to GRADPRESS_BARRIER, got ", call.kind));
  }
  if (call.type < GRADPRESS_BYTES || call.type > GRADPRESS_BFLOAT16) {
    return tl::unexpected(
        wrong("call: type: wanted GRADPRESS_BYTES to GRADPRESS_BFLOAT16, got ", call.type));
  }
  for (const Status& status :
       {check_list(call.in, call.in_bytes, "call: in"),
        check_list(call.out, call.out_bytes, "call: out"),
        check_list(call.counts, call.count_of_counts, "call: counts"),
        check_list(call.receive_counts, call.count_of_receive_counts, "call: receive_counts")}) {
    if (!status) return tl::unexpected(status);
  }
  return Collective{
      .kind = static_cast<CollectiveKind>(call.kind),
      .type = static_cast<DataType>(call.type),
      .in = {static_cast<const std::byte*>(call.in), call.in_bytes},
      .out = {static_cast<std::byte*>(call.out), call.out_bytes},
      .counts = {call.counts, call.count_of_counts},
      .receive_counts = {call.receive_counts, call.count_of_receive_counts},
      .root = call.root,
      .tensor = call.tensor == nullptr ? std::string_view() : std::string_view(call.tensor),
      .timeout = std::chrono::milliseconds(call.timeout_ms)};
}

}  // namespace

}  // namespace gradpress::c_api

using namespace gradpress::c_api;  // the functions below are its outside

extern "C" {

gradpress_code gradpress_group_connect(const char* options, gradpress_group** group,
                                       gradpress_text** error) {
  if (group != nullptr) *group = nullptr;
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_given(group, "group"); !status) return status;
    const auto given = world_options(options);
    if (!given) return given.error();
    auto world = gradpress::connect_world(*given);
    if (!world) return world.error();
    *group = make_handle(std::move(*world)).release();
    return {};
  });
}

gradpress_code gradpress_group_local(const char* options, gradpress_group** groups, size_t count,
                                     gradpress_text** error) {
  if (groups != nullptr) std::fill_n(groups, count, nullptr);
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_given(groups, "groups"); !status) return status;
    const auto given = local_options(options, count);
    if (!given) return given.error();
    auto worlds = gradpress::make_local_worlds(*given);
    if (!worlds) return worlds.error();
    std::vector<std::unique_ptr<gradpress_group>> made;
    for (gradpress::World& world : *worlds) made.push_back(make_handle(std::move(world)));
    for (size_t i = 0; i < count; ++i) groups[i] = made[i].release();
    return {};
  });
}

gradpress_code gradpress_group_subgroup(gradpress_group* group, const uint32_t* ranks, size_t count,
                                        gradpress_group** subgroup, gradpress_text** error) {
  if (subgroup != nullptr) *subgroup = nullptr;
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(group, "group"); !status) return status;
    if (auto status = check_given(subgroup, "subgroup"); !status) return status;
    if (auto status = check_list(ranks, count, "ranks"); !status) return status;
    const std::vector<unsigned> members(ranks, ranks + count);
    auto made = group->world.group->subgroup(members);
    if (!made) return made.error();
    gradpress::World world = spread(group->world, members);
    world.group = std::move(*made);
    *subgroup = make_handle(std::move(world)).release();
    return {};
  });
}

void gradpress_group_free(gradpress_group* group) {
  if (!is_ours(group)) return;
  (void)guarded(nullptr, [&] {
    const std::unique_ptr<gradpress_group> end(group);
    return gradpress::Status();
  });
}

uint32_t gradpress_group_rank(const gradpress_group* group) {
  return is_ours(group) ? group->world.group->rank() : 0;
}

uint32_t gradpress_group_size(const gradpress_group* group) {
  return is_ours(group) ? group->world.group->size() : 0;
}

const char* gradpress_group_backend(const gradpress_group* group) {
  return is_ours(group) ? group->backend.c_str() : nullptr;
}

void gradpress_group_sent_bytes(const gradpress_group* group, uint64_t* intra, uint64_t* inter) {
  const auto sent = guarded_value(gradpress::SentBytes(), [&] {
    return is_ours(group) ? group->world.group->sent_bytes() : gradpress::SentBytes();
  });
  if (intra != nullptr) *intra = sent.intra;
  if (inter != nullptr) *inter = sent.inter;
}

gradpress_code gradpress_group_start(gradpress_group* group, const gradpress_call* call,
                                     uint64_t* ticket, gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(group, "group"); !status) return status;
    if (auto status = check_given(call, "call"); !status) return status;
    if (auto status = check_given(ticket, "ticket"); !status) return status;
    const auto collective = collective_of(*call);
    if (!collective) return collective.error();
    const auto started = group->world.group->start(*collective);
    if (!started) return started.error();
    *ticket = *started;
    return {};
  });
}

gradpress_code gradpress_group_wait(gradpress_group* group, uint64_t ticket,
                                    gradpress_text** error) {
  return guarded(error, [&] {
    auto status = check_handle(group, "group");
    return status ? group->world.group->wait(ticket) : status;
  });
}

int32_t gradpress_group_done(const gradpress_group* group, uint64_t ticket) {
  return guarded_value(0,
                       [&] { return is_ours(group) && group->world.group->done(ticket) ? 1 : 0; });
}
}
