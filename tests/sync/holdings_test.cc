// What every worker holds after each stage, as docs/options.md tells it.
#include "sync/holdings.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "sync/workers.h"

namespace gradpress::sync {
namespace {

/// "shard:sender shard:sender", in the order of memory; "-" for a worker that waits.
std::string blocks_of(const Holding& holding) {
  if (holding.idle) return "-";
  std::string text;
  for (const Block& block : holding.blocks) {
    text.append(text.empty() ? "" : " ").append(std::to_string(block.shard)).append(":");
    text.append(std::to_string(block.sender));
  }
  return text;
}

const std::array<std::uint64_t, 2> kElements = {10, 3};

Holdings holdings(const std::string& option) {
  return Holdings({.option = test::option(option),
                   .topology = {.machines = 2, .workers_per_machine = 2},
                   .elements = kElements});
}

TEST(Partition, CutsEveryMemberAndPutsItTogetherAgain) {
  const Partition whole = Partition::whole(kElements);
  const Partition fine = whole.split(2).split(2);
  EXPECT_EQ(fine.shards(), 4U);
  EXPECT_EQ(fine.piece(0, 1).begin, 3U);
  EXPECT_EQ(fine.piece(0, 1).count, 2U);
  EXPECT_EQ(fine.piece(1, 3).count, 0U);
  EXPECT_EQ(fine.elements(2), 3U + 1U);
  EXPECT_EQ(fine.merged(4).piece(0, 0).count, 10U);
  for (std::uint32_t shard = 0; shard < 2; ++shard) {
    EXPECT_EQ(fine.merged(2).piece(1, shard).begin, whole.split(2).piece(1, shard).begin);
  }
}

TEST(Holdings, OneEncodeMakesTheShardsOfBothExchanges) {
  Holdings all = holdings(
      "Comp@host > alltoall@intra1 > alltoall@inter > allgather@inter > allgather@intra2 > "
      "Decomp@host");
  EXPECT_EQ(blocks_of(all.at(1, 2)), "0:2 1:2 2:2 3:2");
  EXPECT_EQ(blocks_of(all.at(2, 2)), "0:2 1:2 0:3 1:3");
  EXPECT_EQ(blocks_of(all.at(3, 2)), "1:0 1:1 1:2 1:3");
  EXPECT_EQ(blocks_of(all.at(4, 2)), "0:0 0:1 0:2 0:3 1:0 1:1 1:2 1:3");
  EXPECT_EQ(all.at(5, 2).blocks.size(), 16U);
  EXPECT_EQ(all.at(6, 2).first, 0U);
  EXPECT_EQ(all.point(5).covers, 4U);
  EXPECT_FALSE(all.point(3).replicated);
  EXPECT_TRUE(all.point(4).replicated);
}

TEST(Holdings, WorkersThatAreNotTheRootWait) {
  Holdings all =
      holdings("Comp@host > gather@intra1 > allgather@inter > broadcast@intra2 > Decomp@host");
  EXPECT_EQ(blocks_of(all.at(2, 2)), "0:2 0:3");
  EXPECT_EQ(blocks_of(all.at(2, 3)), "-");
  EXPECT_EQ(blocks_of(all.at(3, 1)), "-");
  EXPECT_EQ(blocks_of(all.at(3, 0)), "0:0 0:1 0:2 0:3");
  EXPECT_EQ(blocks_of(all.at(4, 3)), "0:0 0:1 0:2 0:3");
}

TEST(Holdings, EqualSourcesAndShardsAreEqualData) {
  const auto sources = [](const std::string& option, std::size_t point) {
    Holdings all = holdings(option);
    std::string text;
    for (unsigned rank = 0; rank < 4; ++rank) {
      text += all.at(point, rank).idle ? "-" : std::to_string(all.at(point, rank).source);
    }
    return text;
  };
  EXPECT_EQ(sources("Comp@host > allgather@flat > Decomp@host", 1), "0123") << "own gradients";
  EXPECT_EQ(sources("reduce-scatter@intra1 > Comp@host > allgather@inter > Decomp@host > "
                    "allgather@intra2",
                    2),
            "0022")
      << "sums of a machine, each rank another shard";
  EXPECT_EQ(
      sources("reduce@intra1 > Comp@host > allgather@inter > Decomp@host > broadcast@intra2", 2),
      "0-2-")
      << "the roots'";
  EXPECT_EQ(sources("Comp@host > alltoall@flat > Decomp@host > Comp@host > allgather@flat > "
                    "Decomp@host",
                    4),
            "0000")
      << "sums of all, each rank another shard";
  EXPECT_EQ(sources("reduce-scatter@intra1 > Comp@host > allgather@inter > Decomp@host > "
                    "Comp@host > allgather@intra2 > Decomp@host",
                    5),
            "0000")
      << "machines are replicas after the inter phase";
}

TEST(Holdings, ASecondEncodeNumbersPiecesAmongAllWorkers) {
  Holdings all = holdings(
      "reduce-scatter@intra1 > reduce-scatter@inter > Comp@host > allgather@inter > "
      "allgather@intra2 > Decomp@host");
  EXPECT_EQ(all.at(2, 1).first, 2U) << "machine 0, second worker: the first half of its piece";
  EXPECT_EQ(blocks_of(all.at(3, 1)), "2:1");
  EXPECT_EQ(blocks_of(all.at(5, 3)), "0:0 1:2 2:1 3:3");
}

}  // namespace
}  // namespace gradpress::sync
