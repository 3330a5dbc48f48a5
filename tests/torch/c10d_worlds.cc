// The group contract's backends, here c10d alone: ranks are threads, each with a Gloo process group
// of its own.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "c10d_world.h"
#include "comm/store/server.h"
#include "contract/group_worlds.h"

namespace gradpress::test {

namespace {

/// Against hangs only: a machine that stands still for a minute must not fail the contract.
constexpr std::chrono::minutes kTimeout(5);

/// Where all worlds of this process meet, each under a name of its own. One that a rank hosts would
/// wait for the others, which are destroyed after it.
const comm::store::StoreServer& shared_store() {
  static const auto server = [] {
    bool in_use = false;
    auto started = comm::store::StoreServer::start({.host = "127.0.0.1", .port = 0}, in_use);
    EXPECT_TRUE(started.has_value());
    return std::move(*started);
  }();
  return *server;
}

World c10d_world(const comm::Topology& topology) {
  static int worlds = 0;
  const std::string name = "world " + std::to_string(++worlds);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  World world(topology.workers());
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < topology.workers(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto options = c10d::ProcessGroupGloo::Options::create(kTimeout);
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
      options->threads = 1;
      auto made = plugin::connect_c10d(
          {.process_group = c10::make_intrusive<c10d::ProcessGroupGloo>(
               store, static_cast<int>(rank), static_cast<int>(topology.workers()), options),
           .store = "127.0.0.1:" + std::to_string(shared_store().port()),
           .name = name,
           .local_size = topology.workers_per_machine,
           .timeout = kTimeout,
           .start_timeout = kTimeout});
      EXPECT_TRUE(made.has_value()) << made.error().to_string();
      if (made) world[rank] = std::move(made->group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return world;
}

}  // namespace

std::vector<Backend> group_backends() { return {{.name = "c10d", .make_world = c10d_world}}; }

}  // namespace gradpress::test
