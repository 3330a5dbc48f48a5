#include "contract/group_worlds.h"

#include <gradpress/world.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "comm/gloo/gloo.h"
#include "comm/local/local.h"
#include "comm/process.h"
#include "comm/store/server.h"

namespace gradpress::test {

namespace {

/// Against hangs only: a machine that stands still for a minute must not fail the contract.
constexpr std::chrono::minutes kTimeout(5);

World local_world(const comm::Topology& topology) {
  auto world = comm::make_local_world({.topology = topology, .timeout = kTimeout});
  EXPECT_TRUE(world.has_value());
  return world ? std::move(*world) : World();
}

/// Slow enough that messages overlap and wait, fast enough for a test.
World linked_world(const comm::Topology& topology) {
  auto world = comm::make_local_world(
      {.topology = topology,
       .inter = {.bits_per_second = 20'000'000'000, .latency = std::chrono::microseconds(20)},
       .intra = {.bits_per_second = 80'000'000'000},
       .timeout = kTimeout});
  EXPECT_TRUE(world.has_value());
  return world ? std::move(*world) : World();
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

/// Ranks as threads of this process, each with its own connections, store client and watch.
World gloo_world(const comm::Topology& topology) {
  static int worlds = 0;
  const std::string name = "world " + std::to_string(++worlds);
  const std::string store = "127.0.0.1:" + std::to_string(shared_store().port());
  World world(topology.workers());
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < topology.workers(); ++rank) {
    threads.emplace_back([&, rank] {
      const unsigned local_size = topology.workers_per_machine;
      auto made = connect_world({.backend = "gloo",
                                 .timeout = kTimeout,
                                 .start_timeout = kTimeout,
                                 .rank = rank,
                                 .size = topology.workers(),
                                 .local_rank = rank % local_size,
                                 .local_size = local_size,
                                 .store = store,
                                 .name = name});
      EXPECT_TRUE(made.has_value()) << made.error().to_string();
      if (made) world[rank] = std::move(made->group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return world;
}

World mpi_world(const comm::Topology& topology) {
  auto made = connect_world({.backend = "mpi",
                             .timeout = kTimeout,
                             .start_timeout = kTimeout,
                             .local_size = topology.workers_per_machine});
  World world;
  if (made) {
    world.push_back(std::move(made->group));
  } else {
    ADD_FAILURE() << made.error().to_string();
  }
  return world;
}

/// Of the job that an MPI launcher started this process for.
std::optional<unsigned> mpi_processes() {
  const comm::Environment environment = comm::process_environment();
  for (const auto* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (const auto text = environment(name)) return static_cast<unsigned>(std::stoul(*text));
  }
  return std::nullopt;
}

}  // namespace

std::vector<Backend> group_backends() {
  if (const auto processes = mpi_processes()) {
    return {{.name = "mpi", .make_world = mpi_world, .processes = *processes}};
  }
  std::vector<Backend> backends{{.name = "local", .make_world = local_world},
                                {.name = "local_with_links", .make_world = linked_world}};
  if (comm::has_gloo()) backends.push_back({.name = "gloo", .make_world = gloo_world});
  return backends;
}

}  // namespace gradpress::test
