// Who is blamed for what, from what is known.
#include "comm/blame.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace gradpress::comm {
namespace {

using namespace std::chrono_literals;

const std::vector<unsigned> kMembers{10, 11, 12, 13};

Report waiting(unsigned peer, std::uint64_t call = 7, std::size_t count = 100) {
  return {.call = call,
          .peer = peer,
          .view = {.kind = CollectiveKind::kAllReduce,
                   .type = DataType::kFloat32,
                   .counts = {count},
                   .tensor = "conv1"}};
}

/// Rank 0 of four waits in call 7 for rank 1, out of patience; nobody has told anything.
Case timed_out() {
  Case one{.members = kMembers,
           .rank = 0,
           .call = 7,
           .peer = 1,
           .waited = 5s,
           .timeout = 5s,
           .witnesses = std::vector<Witness>(4)};
  for (Witness& witness : one.witnesses) witness.calls = {.begun = 7, .ended = 6};
  one.witnesses[0].report = waiting(1);
  return one;
}

TEST(Blame, APatientWaitIsNobodysFault) {
  Case one = timed_out();
  one.waited = 4s;
  EXPECT_FALSE(judge(one).has_value());
}

TEST(Blame, FollowsTheChainOfWaitsToItsEnd) {
  Case one = timed_out();
  one.witnesses[1].report = waiting(2);
  one.witnesses[2].report = waiting(3);
  one.witnesses[3].calls = {.begun = 6, .ended = 6};
  const auto verdict = judge(one);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->blamed, 13U);
  EXPECT_EQ(verdict->call, 7U);
  EXPECT_EQ(verdict->text,
            "rank 13 has not answered for 5000 ms (rank 11 waits for it, too); its process is "
            "alive; it has begun 6 calls, this is call 7; raise timeout_s if it may be busy for "
            "longer");
}

TEST(Blame, NamesThePeerInACircleOfWaits) {
  Case one = timed_out();
  one.witnesses[1].report = waiting(2);
  one.witnesses[2].report = waiting(1);
  EXPECT_EQ(judge(one)->blamed, 11U);
  one.witnesses[2].report = waiting(0);
  EXPECT_EQ(judge(one)->blamed, 11U) << "this rank itself waits";
}

TEST(Blame, ABeatThatStandsStillGoesBeforeTheChain) {
  Case one = timed_out();
  // Stopped while it waited: what it told last is no longer so.
  one.witnesses[1].report = waiting(2);
  one.witnesses[1].still = 4s;
  one.witnesses[3].still = 1s;
  const auto verdict = judge(one);
  EXPECT_EQ(verdict->blamed, 11U);
  EXPECT_NE(verdict->text.find("gives no sign"), std::string::npos) << verdict->text;
}

TEST(Blame, AProcessThatEndedIsNamedWithoutWaiting) {
  Case one = timed_out();
  one.waited = 200ms;
  one.witnesses[2].gone = true;
  const auto verdict = judge(one);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->blamed, 12U);
  EXPECT_EQ(verdict->text, "rank 12 is lost: its process has ended");
  one.witnesses[2].calls.ended = 7;
  EXPECT_FALSE(judge(one).has_value()) << "it has done its part in this call";
}

TEST(Blame, WhoLeftBeforeThisCallIsNamedWhoLeftAfterItIsNot) {
  Case one = timed_out();
  one.waited = 200ms;
  one.witnesses[3].left = 7;
  EXPECT_FALSE(judge(one).has_value());
  one.witnesses[3].left = 6;
  EXPECT_EQ(judge(one)->text, "rank 13 has left the group");
}

TEST(Blame, ViewsThatDifferAreToldWithoutWaiting) {
  Case one = timed_out();
  one.waited = 200ms;
  one.witnesses[2].report = waiting(0, 7, 101);
  const auto verdict = judge(one);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->code, Code::kInvalidArgument);
  EXPECT_EQ(verdict->text,
            "ranks disagree on call 7: rank 10 runs all-reduce of conv1, 100 float32; rank 12 runs "
            "all-reduce of conv1, 101 float32");
  one.witnesses[2].report = waiting(0, 8, 101);
  EXPECT_FALSE(judge(one).has_value()) << "another call";
}

TEST(Blame, ABrokenLinkWaitsForAnExplanationForAWhile) {
  Case one = timed_out();
  one.peer.reset();
  one.broken = BrokenLink{.peer = 3, .why = "reset by peer", .since = 100ms};
  EXPECT_FALSE(judge(one).has_value());
  one.broken->since = kMystery;
  EXPECT_EQ(judge(one)->text, "the connection to rank 13 broke: reset by peer");
  one.witnesses[2].gone = true;
  EXPECT_EQ(judge(one)->blamed, 12U);
}

TEST(Blame, ReportsAndVerdictsSurviveTheStore) {
  const Report report = waiting(2, 9, 1234);
  const auto back = decode_report(encode(report), 4);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->call, 9U);
  EXPECT_EQ(back->peer, 2U);
  EXPECT_TRUE(agree(back->view, 0, report.view, 1));
  const auto verdict =
      decode_verdict(encode({.code = Code::kInvalidArgument, .call = 3, .blamed = 4, .text = "x"}));
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->code, Code::kInvalidArgument);
  EXPECT_EQ(verdict->blamed, 4U);
}

TEST(Blame, BytesThatAreNoReportAreNone) {
  const std::string whole = encode(waiting(2));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(decode_report(whole.substr(0, length), 4).has_value()) << length;
  }
  EXPECT_FALSE(decode_report(whole + "x", 4).has_value());
  EXPECT_FALSE(decode_report(whole, 2).has_value()) << "a peer that is not in the group";
  EXPECT_FALSE(decode_verdict("nonsense").has_value());
}

}  // namespace
}  // namespace gradpress::comm
