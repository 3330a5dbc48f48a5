// What the contract suite cannot see: windows, blocks and slots at their edges.
#include "comm/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/local/local.h"
#include "support/workers.h"

namespace gradpress::comm {
namespace {

using test::bytes_of;

test::World world_of(unsigned ranks) {
  auto world = make_local_world({.topology = {.machines = ranks}});
  EXPECT_TRUE(world.has_value());
  return std::move(*world);
}

/// Different for every rank and place, and exact in sums over a few ranks.
float value_at(unsigned rank, std::size_t i) {
  return static_cast<float>((i * 7 + rank * 13) % 1021);
}

constexpr std::size_t kSegmentFloats = kSegmentBytes / sizeof(float);

void expect_reduce_scatter(unsigned ranks, const std::vector<std::size_t>& counts) {
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  auto world = world_of(ranks);
  test::run_workers(world, [&](Group& group) {
    std::vector<float> in(total);
    for (std::size_t i = 0; i < total; ++i) in[i] = value_at(group.rank(), i);
    std::vector<float> out(counts[group.rank()], -1.0F);
    const Status status = group.run({.kind = CollectiveKind::kReduceScatter,
                                     .type = DataType::kFloat32,
                                     .in = bytes_of(in),
                                     .out = bytes_of(out),
                                     .counts = counts});
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    std::size_t offset = 0;
    for (unsigned rank = 0; rank < group.rank(); ++rank) offset += counts[rank];
    for (std::size_t i = 0; i < out.size(); ++i) {
      float want = 0.0F;
      for (unsigned rank = 0; rank < ranks; ++rank) want += value_at(rank, offset + i);
      ASSERT_EQ(out[i], want) << "rank " << group.rank() << " element " << i;
    }
  });
}

TEST(ReduceScatter, NeedsOnlyAWindowOfScratchHoweverLargeTheChunks) {
  // Chunks of many blocks: a ring that kept its partial sums until a chunk is complete would run
  // out of slots and lock up.
  for (const unsigned ranks : {2U, 3U, 5U}) {
    expect_reduce_scatter(ranks, std::vector<std::size_t>(
                                     ranks, 3 * kWindow * kSegmentFloats + kSegmentFloats / 2 + 1));
  }
}

TEST(ReduceScatter, TakesCountsAsUnevenAsTheyCome) {
  const std::size_t block = kWindow * kSegmentFloats;
  expect_reduce_scatter(3, {2 * block + 5, 0, 1});
  expect_reduce_scatter(3, {0, 0, 2 * block});
  expect_reduce_scatter(4, {1, 3 * block, 0, block + 1});
  expect_reduce_scatter(4, {0, 0, 0, 0});
  expect_reduce_scatter(2, {3 * block, 7});
}

TEST(AllReduce, IsRightAtTheEdgesOfSegmentsAndWindows) {
  for (const unsigned ranks : {2U, 3U}) {
    auto world = world_of(ranks);
    for (const std::size_t chunk : {kSegmentFloats - 1, kSegmentFloats, kSegmentFloats + 1,
                                    kWindow * kSegmentFloats, (kWindow + 1) * kSegmentFloats + 3}) {
      for (const bool in_place : {false, true}) {
        test::run_workers(world, [&](Group& group) {
          const std::size_t n = chunk * ranks - 1;
          std::vector<float> in(n);
          for (std::size_t i = 0; i < n; ++i) in[i] = value_at(group.rank(), i);
          std::vector<float> separate(n);
          std::vector<float>& out = in_place ? in : separate;
          ASSERT_TRUE(group
                          .run({.kind = CollectiveKind::kAllReduce,
                                .type = DataType::kFloat32,
                                .in = std::as_bytes(std::span(in)),
                                .out = bytes_of(out)})
                          .is_ok());
          for (std::size_t i = 0; i < n; ++i) {
            float want = 0.0F;
            for (unsigned rank = 0; rank < ranks; ++rank) want += value_at(rank, i);
            ASSERT_EQ(out[i], want) << "element " << i << " of " << n;
          }
        });
      }
    }
  }
}

TEST(Barrier, HoldsEveryRankUntilTheLastHasCome) {
  for (const unsigned ranks : {2U, 3U, 4U, 7U, 8U, 13U}) {
    auto world = world_of(ranks);
    std::atomic<unsigned> come = 0;
    test::run_workers(world, [&](Group& group) {
      for (unsigned turn = 1; turn <= 5; ++turn) {
        ++come;
        ASSERT_TRUE(group.run({.kind = CollectiveKind::kBarrier}).is_ok());
        EXPECT_GE(come.load(), turn * ranks);
      }
    });
  }
}

TEST(Groups, OfOneMachineRunBesideEachOtherAndTheWorld) {
  const Topology topology{.machines = 2, .workers_per_machine = 2};
  auto made = make_local_world({.topology = topology, .inter = *parse_link("1gbit,20us")});
  ASSERT_TRUE(made.has_value());
  test::run_workers(*made, [&](Group& world) {
    auto intra = world.subgroup(topology.intra_ranks(world.rank()));
    auto inter = world.subgroup(topology.inter_ranks(world.rank()));
    ASSERT_TRUE(intra.has_value() && inter.has_value());
    std::vector<std::vector<float>> data(3, std::vector<float>(10000, 1.0F));
    const auto call = [&](std::size_t i) {
      return Collective{.kind = CollectiveKind::kAllReduce,
                        .type = DataType::kFloat32,
                        .in = std::as_bytes(std::span(data[i])),
                        .out = bytes_of(data[i])};
    };
    for (int turn = 0; turn < 3; ++turn) {
      // Started in an order that differs between ranks: groups do not wait for each other.
      std::vector<std::pair<Group*, std::size_t>> order = {
          {&world, 0}, {intra->get(), 1}, {inter->get(), 2}};
      std::rotate(order.begin(), order.begin() + world.rank() % 3, order.end());
      std::vector<std::pair<Group*, Ticket>> tickets;
      for (const auto& [group, i] : order) {
        const auto ticket = group->start(call(i));
        ASSERT_TRUE(ticket.has_value());
        tickets.emplace_back(group, *ticket);
      }
      for (const auto& [group, ticket] : tickets) ASSERT_TRUE(group->wait(ticket).is_ok());
    }
    EXPECT_EQ(data[0][9999], 64.0F);
    EXPECT_EQ(data[1][0], 8.0F);
    EXPECT_EQ(data[2][17], 8.0F);
    EXPECT_EQ((*intra)->sent_bytes().inter, 0U);
    EXPECT_EQ((*inter)->sent_bytes().intra, 0U);
    EXPECT_GT((*inter)->sent_bytes().inter, 0U);
  });
}

TEST(LocalWorld, RefusesWorldsWithoutWorkers) {
  EXPECT_EQ(make_local_world({.topology = {.machines = 0}}).error().code(), Code::kInvalidArgument);
  EXPECT_FALSE(make_local_world({.topology = {.machines = 1000, .workers_per_machine = 1000}}));
  EXPECT_FALSE(make_local_world({.timeout = std::chrono::milliseconds(0)}));
}

}  // namespace
}  // namespace gradpress::comm
