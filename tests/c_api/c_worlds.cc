// Worlds for the group contract whose groups are made, called and freed through the C interface.
#include <gradpress/c_api.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "c_api/c_calls.h"
#include "comm/gloo/gloo.h"
#include "comm/store/server.h"
#include "contract/group_worlds.h"

namespace gradpress::test {

namespace {

/// Against hangs only: a machine that stands still for a minute must not fail the contract.
constexpr const char* kTimeouts = R"("timeout_s": 300, "start_timeout_s": 300)";

Status status_of(const Outcome& outcome) {
  return outcome ? Status() : Status::error(static_cast<Code>(outcome.code), outcome.error);
}

class CGroup final : public Group {
 public:
  explicit CGroup(GroupHandle handle) : handle_(std::move(handle)) {}

  unsigned rank() const noexcept override { return gradpress_group_rank(handle_.get()); }
  unsigned size() const noexcept override { return gradpress_group_size(handle_.get()); }
  std::string_view backend() const noexcept override {
    return gradpress_group_backend(handle_.get());
  }

  Result<Ticket> start(const Collective& what) override {
    const std::string tensor(what.tensor);
    const gradpress_call one{.struct_size = sizeof(gradpress_call),
                             .kind = static_cast<gradpress_collective>(what.kind),
                             .type = static_cast<gradpress_type>(what.type),
                             .in = what.in.data(),
                             .in_bytes = what.in.size(),
                             .out = what.out.data(),
                             .out_bytes = what.out.size(),
                             .counts = what.counts.data(),
                             .count_of_counts = what.counts.size(),
                             .receive_counts = what.receive_counts.data(),
                             .count_of_receive_counts = what.receive_counts.size(),
                             .root = what.root,
                             .tensor = tensor.c_str(),
                             .timeout_ms = static_cast<std::uint32_t>(what.timeout.count())};
    Ticket ticket = 0;
    const Status status = status_of(call(gradpress_group_start, handle_.get(), &one, &ticket));
    if (!status) return tl::unexpected(status);
    return ticket;
  }
  Status wait(Ticket ticket) override {
    return status_of(call(gradpress_group_wait, handle_.get(), ticket));
  }
  bool done(Ticket ticket) const override {
    return gradpress_group_done(handle_.get(), ticket) == 1;
  }
  Result<std::unique_ptr<Group>> subgroup(std::span<const unsigned> ranks) override {
    gradpress_group* made = nullptr;
    const Status status =
        status_of(call(gradpress_group_subgroup, handle_.get(), ranks.data(), ranks.size(), &made));
    if (!status) return tl::unexpected(status);
    return std::make_unique<CGroup>(GroupHandle(made));
  }
  SentBytes sent_bytes() const override {
    SentBytes sent;
    gradpress_group_sent_bytes(handle_.get(), &sent.intra, &sent.inter);
    return sent;
  }

 private:
  GroupHandle handle_;
};

World local_world(const comm::Topology& topology) {
  const std::string options = R"({"timeout_s": 300, "workers_per_machine": )" +
                              std::to_string(topology.workers_per_machine) + "}";
  World world;
  for (GroupHandle& group : local_groups(topology.workers(), options.c_str())) {
    world.push_back(std::make_unique<CGroup>(std::move(group)));
  }
  return world;
}

/// Where all worlds of this process meet, each under a name of its own.
const comm::store::StoreServer& shared_store() {
  static const auto server = [] {
    bool in_use = false;
    auto started = comm::store::StoreServer::start({.host = "127.0.0.1", .port = 0}, in_use);
    EXPECT_TRUE(started.has_value());
    return std::move(*started);
  }();
  return *server;
}

World gloo_world(const comm::Topology& topology) {
  static int worlds = 0;
  const std::string name = "world " + std::to_string(++worlds);
  const unsigned local_size = topology.workers_per_machine;
  World world(topology.workers());
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < topology.workers(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto number = [](const char* option, unsigned value) {
        return std::string(", \"") + option + "\": " + std::to_string(value);
      };
      const std::string options =
          R"({"backend": "gloo", "name": ")" + name + R"(", "store": "127.0.0.1:)" +
          std::to_string(shared_store().port()) + "\", " + kTimeouts + number("rank", rank) +
          number("size", topology.workers()) + number("local_rank", rank % local_size) +
          number("local_size", local_size) + "}";
      gradpress_group* group = nullptr;
      const Outcome made = call(gradpress_group_connect, options.c_str(), &group);
      EXPECT_TRUE(made) << made;
      if (made) world[rank] = std::make_unique<CGroup>(GroupHandle(group));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return world;
}

}  // namespace

std::vector<Backend> group_backends() {
  std::vector<Backend> backends{{.name = "c_local", .make_world = local_world}};
  if (comm::has_gloo()) backends.push_back({.name = "c_gloo", .make_world = gloo_world});
  return backends;
}

}  // namespace gradpress::test
