// What the others are told when a worker leaves, stays away or runs something else.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <functional>
#include <vector>

#include "comm/local/local.h"
#include "support/workers.h"

namespace gradpress::comm {
namespace {

using namespace std::chrono_literals;
using test::bytes_of;

test::World world_of(unsigned ranks, std::chrono::milliseconds timeout = 30s) {
  auto world = make_local_world({.topology = {.machines = ranks}, .timeout = timeout});
  EXPECT_TRUE(world.has_value());
  return std::move(*world);
}

Status all_reduce(Group& group, std::size_t n, std::string_view tensor) {
  std::vector<float> values(n, 1.0F);
  const Status status = group.run({.kind = CollectiveKind::kAllReduce,
                                   .type = DataType::kFloat32,
                                   .in = std::as_bytes(std::span(values)),
                                   .out = bytes_of(values),
                                   .tensor = tensor});
  EXPECT_TRUE(!status.is_ok() || values[0] == static_cast<float>(group.size()));
  return status;
}

void expect_names(const Status& status, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos)
        << "no \"" << word << "\" in: " << status.to_string();
  }
}

TEST(LocalFaults, ADestroyedEndIsNamedToAllOthersAtOnce) {
  for (const unsigned ranks : {2U, 3U, 4U, 7U}) {
    // A timeout that would fail the test by ctest's own: the error must not need it.
    auto world = world_of(ranks, 3600s);
    const unsigned victim = ranks - 2;
    test::run_workers(world, [&](Group& group) {
      ASSERT_TRUE(all_reduce(group, 1000, "first").is_ok());
      const unsigned rank = group.rank();
      if (rank == victim) {
        world[rank].reset();
        return;
      }
      const Status status = all_reduce(group, 100000, "second");
      EXPECT_EQ(status.code(), Code::kPeerLost);
      expect_names(status, {"all-reduce of second, ",
                            "rank " + std::to_string(victim) + " has left the group"});
      const auto later = group.start({.kind = CollectiveKind::kBarrier});
      ASSERT_FALSE(later.has_value()) << "the failure must stay";
      EXPECT_EQ(later.error().message(), status.message());
    });
  }
}

TEST(LocalFaults, AWorkerThatNeverCallsIsNamedNotItsInnocentNeighbour) {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kBroadcast, CollectiveKind::kBarrier}) {
    auto world = world_of(5, 200ms);
    test::run_workers(world, [&](Group& group) {
      if (group.rank() == 3) return;
      std::vector<float> in(300000);
      std::vector<float> out(300000);
      const Status status = group.run({.kind = kind,
                                       .type = DataType::kFloat32,
                                       .in = bytes_of(in),
                                       .out = bytes_of(out),
                                       .root = 3,
                                       .tensor = "conv1"});
      EXPECT_EQ(status.code(), Code::kPeerLost) << collective_name(kind);
      expect_names(status, {collective_name(kind), "of conv1", "rank 3 has not answered"});
    });
  }
}

TEST(LocalFaults, ANewWorldCanBeFormedAfterwards) {
  for (int turn = 0; turn < 3; ++turn) {
    auto world = world_of(3, 100ms);
    test::run_workers(world, [&](Group& group) {
      if (group.rank() == 1) return;
      EXPECT_EQ(all_reduce(group, 10, "lost").code(), Code::kPeerLost);
    });
    world = world_of(3);
    test::run_workers(world,
                      [&](Group& group) { EXPECT_TRUE(all_reduce(group, 10, "found").is_ok()); });
  }
}

TEST(LocalFaults, AnEndCanBeDestroyedInTheMiddleOfItsCalls) {
  for (int turn = 0; turn < 50; ++turn) {
    // As above, no rank may need the timeout to find out.
    auto world = world_of(4, 3600s);
    // Kept outside: after a failure buffers belong to the group until it is destroyed.
    std::vector<std::vector<float>> data(4, std::vector<float>(200000, 1.0F));
    test::run_workers(world, [&](Group& group) {
      const unsigned rank = group.rank();
      Ticket last = 0;
      for (int i = 0; i < 3; ++i) {
        const auto ticket = group.start({.kind = CollectiveKind::kAllReduce,
                                         .type = DataType::kFloat32,
                                         .in = std::as_bytes(std::span(data[rank])),
                                         .out = bytes_of(data[rank])});
        if (ticket) last = *ticket;
      }
      if (rank == 2) {
        world[rank].reset();
        return;
      }
      const Status status = group.wait(last);
      EXPECT_TRUE(status.is_ok() || status.code() == Code::kPeerLost) << status.to_string();
    });
    world.clear();
  }
}

/// Rank 1 of three runs `odd`, the others `usual`: all must be told, with both views.
void expect_disagreement(const Collective& usual, const Collective& odd,
                         std::initializer_list<std::string_view> words) {
  auto world = world_of(3, 3600s);
  test::run_workers(world, [&](Group& group) {
    std::vector<float> in(48);
    std::vector<float> out(48);
    Collective call = group.rank() == 1 ? odd : usual;
    if (call.in.data() == nullptr) call.in = {bytes_of(in).data(), call.in.size()};
    call.in = bytes_of(in).first(call.in.size());
    call.out = bytes_of(out).first(call.out.size());
    const Status status = group.run(call);
    if (status.is_ok()) {
      // Ranks that had no part in the data learn of it with the next call.
      EXPECT_EQ(group.run({.kind = CollectiveKind::kBarrier}).code(), Code::kInvalidArgument);
      return;
    }
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    expect_names(status, {"ranks disagree on call 1", "rank 1 runs"});
    expect_names(status, words);
  });
}

TEST(LocalFaults, RanksThatDisagreeAreToldBothViews) {
  static std::array<std::byte, 192> sizes;
  const std::span<std::byte> memory(sizes);
  const Collective usual{.kind = CollectiveKind::kAllReduce,
                         .type = DataType::kFloat32,
                         .in = memory.first(40),
                         .out = memory.first(40),
                         .tensor = "a"};
  Collective odd = usual;
  odd.in = memory.first(44);
  odd.out = memory.first(44);
  expect_disagreement(usual, odd, {"all-reduce of a, 10 float32", "all-reduce of a, 11 float32"});
  odd = usual;
  odd.type = DataType::kFloat16;
  expect_disagreement(usual, odd, {"10 float32", "20 float16"});
  odd = usual;
  odd.tensor = "b";
  expect_disagreement(usual, odd, {"all-reduce of a,", "all-reduce of b,"});
  odd = usual;
  odd.kind = CollectiveKind::kBroadcast;
  expect_disagreement(usual, odd, {"all-reduce of a", "broadcast of a, 10 float32, root 0"});
  Collective other_root = odd;
  other_root.root = 2;
  expect_disagreement(odd, other_root, {"root 0", "root 2"});
}

TEST(LocalFaults, CountsThatDoNotMeetAreTold) {
  static std::array<std::byte, 192> sizes;
  const std::span<std::byte> memory(sizes);
  const std::array<std::size_t, 3> even{2, 2, 2};
  const std::array<std::size_t, 3> uneven{2, 2, 3};
  Collective usual{.kind = CollectiveKind::kAllToAll,
                   .type = DataType::kFloat32,
                   .in = memory.first(24),
                   .out = memory.first(24),
                   .counts = even,
                   .receive_counts = even,
                   .tensor = "a"};
  Collective odd = usual;
  odd.in = memory.first(28);
  odd.counts = uneven;
  expect_disagreement(usual, odd,
                      {"3 float32 to rank 2 and 2 from it", "2 float32 to rank 1 and 2 from it"});
  usual = {.kind = CollectiveKind::kAllGather,
           .type = DataType::kBytes,
           .in = memory.first(2),
           .out = memory.first(6),
           .counts = even,
           .tensor = "a"};
  odd = usual;
  odd.out = memory.first(7);
  odd.counts = uneven;
  expect_disagreement(usual, odd, {"6 bytes as 2+2+2", "7 bytes as 2+2+3"});
}

TEST(LocalFaults, ErrorsOfASubgroupNameRanksOfTheWorld) {
  auto world = world_of(4, 3600s);
  test::run_workers(world, [&](Group& group) {
    if (group.rank() % 2 == 0) return;
    auto odd = group.subgroup(std::array{1U, 3U});
    ASSERT_TRUE(odd.has_value());
    if (group.rank() == 3) return;  // its end of the sub-group is destroyed here
    const Status status = all_reduce(**odd, 100, "x");
    EXPECT_EQ(status.code(), Code::kPeerLost);
    expect_names(status, {"rank 3 has left the group"});
  });
}

TEST(LocalFaults, ARefusedCallLeavesTheGroupAlive) {
  auto world = world_of(2);
  test::run_workers(world, [&](Group& group) {
    std::vector<float> values(4);
    const auto refused = group.start(
        {.kind = CollectiveKind::kAllReduce, .type = DataType::kFloat32, .in = bytes_of(values)});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
    EXPECT_TRUE(all_reduce(group, 4, "after").is_ok());
  });
}

}  // namespace
}  // namespace gradpress::comm
