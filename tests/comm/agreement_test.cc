#include "comm/agreement.h"

#include <gtest/gtest.h>

#include <array>

namespace gradpress::comm {
namespace {

alignas(8) std::array<std::byte, 256> memory;
const std::span<std::byte> kBuffer(memory);
const std::span<std::byte> kOther = kBuffer.subspan(128);

/// A call that fits on rank 1 of 4, to be spoilt.
Collective good(CollectiveKind kind) {
  Collective call{.kind = kind, .type = DataType::kFloat32, .tensor = "conv1"};
  switch (kind) {
    case CollectiveKind::kReduceScatter:
      call.in = kBuffer.first(64);
      call.out = kOther.first(16);
      break;
    case CollectiveKind::kAllGather:
      call.in = kBuffer.first(16);
      call.out = kOther.first(64);
      break;
    case CollectiveKind::kGather:
      call.in = kBuffer.first(16);
      break;
    case CollectiveKind::kBroadcast:
      call.out = kOther.first(16);
      break;
    case CollectiveKind::kReduce:
      call.in = kBuffer.first(16);
      break;
    case CollectiveKind::kBarrier:
      break;
    default:
      call.in = kBuffer.first(64);
      call.out = kOther.first(64);
  }
  return call;
}

void expect_refused(const Collective& call, const char* words) {
  const Status status = check_collective(call, 1, 4);
  EXPECT_EQ(status.code(), Code::kInvalidArgument) << words;
  EXPECT_NE(status.message().find(words), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("of conv1 on rank 1"), std::string::npos) << status.message();
}

TEST(CheckCollective, TakesWhatFits) {
  for (int kind = 0; kind <= static_cast<int>(CollectiveKind::kBarrier); ++kind) {
    const Status status = check_collective(good(static_cast<CollectiveKind>(kind)), 1, 4);
    EXPECT_TRUE(status.is_ok()) << status.to_string();
  }
  Collective in_place = good(CollectiveKind::kAllReduce);
  in_place.out = kBuffer.first(64);
  EXPECT_TRUE(check_collective(in_place, 1, 4).is_ok());
  Collective at_its_place = good(CollectiveKind::kAllGather);
  at_its_place.in = at_its_place.out.subspan(16, 16);
  EXPECT_TRUE(check_collective(at_its_place, 1, 4).is_ok());
}

TEST(CheckCollective, SaysWhatDoesNotFit) {
  Collective call = good(CollectiveKind::kAllReduce);
  call.out = call.out.first(60);
  expect_refused(call, "wanted 64 B out, got 60 B");
  call.in = call.in.first(60);
  call.type = DataType::kBytes;
  expect_refused(call, "bytes cannot be summed");
  call.type = DataType::kFloat32;
  call.in = kBuffer.subspan(1, 60);
  expect_refused(call, "aligned to 4 B");
  call.in = kBuffer.first(62);
  call.out = kOther.first(62);
  expect_refused(call, "no whole elements");
  call.in = kBuffer.first(64);
  call.out = kBuffer.subspan(32, 64);
  expect_refused(call, "overlap");

  call = good(CollectiveKind::kReduceScatter);
  const std::array<std::size_t, 3> few{4, 4, 8};
  call.counts = few;
  expect_refused(call, "3 counts for 4 ranks");
  const std::array<std::size_t, 4> huge{std::size_t{1} << 63, std::size_t{1} << 63, 0, 0};
  call = good(CollectiveKind::kAllGather);
  call.in = {};
  call.counts = huge;
  expect_refused(call, "wanted ");
  call = good(CollectiveKind::kAllToAll);
  call.in = kBuffer.first(60);
  call.out = kOther.first(60);
  expect_refused(call, "60 B do not split evenly over 4 ranks");
  call = good(CollectiveKind::kAllToAll);
  const std::array<std::size_t, 4> counts{4, 4, 4, 4};
  call.counts = counts;
  expect_refused(call, "both counts and receive counts");
  call = good(CollectiveKind::kBroadcast);
  call.root = 4;
  expect_refused(call, "root 4 in a group of 4");
}

TEST(CheckSubgroup, SaysWhoIsWrong) {
  EXPECT_TRUE(check_subgroup(std::array{2U, 0U}, 0, 3).is_ok());
  EXPECT_FALSE(check_subgroup(std::array{0U, 3U}, 0, 3).is_ok());
  EXPECT_FALSE(check_subgroup(std::array{0U, 1U, 0U}, 0, 3).is_ok());
  EXPECT_FALSE(check_subgroup(std::array{1U, 2U}, 0, 3).is_ok());
}

TEST(Agreement, EqualCountsAndTheSameCountsGivenAgree) {
  CallView given;
  CallView equal;
  Collective call = good(CollectiveKind::kReduceScatter);
  view_of(call, 1, 4, equal);
  const std::array<std::size_t, 4> counts{4, 4, 4, 4};
  call.counts = counts;
  view_of(call, 1, 4, given);
  EXPECT_TRUE(agree(equal, 0, given, 1));
  given.counts[2] = 5;
  EXPECT_FALSE(agree(equal, 0, given, 1));
  EXPECT_EQ(to_text(given, 0), "reduce-scatter of conv1, 17 float32 as 4+4+5+4");
}

TEST(Agreement, AllToAllComparesWhatGoesBetweenTwoRanks) {
  CallView zero{.kind = CollectiveKind::kAllToAll, .counts = {1, 2, 3, 4}};
  CallView one{.kind = CollectiveKind::kAllToAll, .counts = {3, 9, 2, 9}};
  EXPECT_TRUE(agree(zero, 0, one, 1) == false);
  zero.counts = {1, 2, 1, 3};
  EXPECT_TRUE(agree(zero, 0, one, 1));
  EXPECT_TRUE(agree(one, 1, zero, 0));
}

TEST(Agreement, MessagesOfRanksThatAgreeAndOfNoOthersHaveTheSameTag) {
  const CallView usual{.kind = CollectiveKind::kBroadcast,
                       .type = DataType::kFloat32,
                       .root = 1,
                       .counts = {100},
                       .tensor = "conv1"};
  const std::uint64_t tag = pair_tag(usual, 0, 1, 7);
  EXPECT_EQ(pair_tag(usual, 1, 0, 7), tag);
  EXPECT_NE(pair_tag(usual, 1, 0, 8), tag);
  for (CallView other : {usual, usual, usual, usual, usual}) {
    static int which = 0;
    if (which == 0) other.kind = CollectiveKind::kReduce;
    if (which == 1) other.type = DataType::kFloat16;
    if (which == 2) other.root = 2;
    if (which == 3) other.counts[0] = 101;
    if (which == 4) other.tensor = "conv2";
    EXPECT_NE(pair_tag(other, 1, 0, 7), tag) << which;
    ++which;
  }
  CallView zero{.kind = CollectiveKind::kAllToAll, .counts = {1, 2, 1, 3}};
  const CallView one{.kind = CollectiveKind::kAllToAll, .counts = {3, 9, 2, 9}};
  EXPECT_EQ(pair_tag(zero, 0, 1, 7), pair_tag(one, 1, 0, 7));
  zero.counts[1] = 5;
  EXPECT_NE(pair_tag(zero, 0, 1, 7), pair_tag(one, 1, 0, 7));
}

}  // namespace
}  // namespace gradpress::comm
