// One thread, both ends, a clock that jumps: when messages arrive, to the nanosecond.
#include "comm/local/transport.h"

#include <gtest/gtest.h>

#include <vector>

#include "comm/local/board.h"
#include "support/fake_clock.h"

namespace gradpress::comm {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMegabit = 125'000;

class TwoEnds : public ::testing::Test {
 protected:
  TwoEnds()
      : board_(std::make_shared<Board>(
            std::make_shared<Network>(Topology{.machines = 2},
                                      Link{.bits_per_second = 1'000'000'000, .latency = 50us},
                                      Link{}),
            clock_, std::vector<unsigned>{0, 1})) {}

  test::FakeClock clock_;
  std::shared_ptr<Board> board_;
  LocalTransport zero_{board_, 0};
  LocalTransport one_{board_, 1};
  std::vector<std::byte> from_ = std::vector<std::byte>(kMegabit, std::byte{7});
  std::vector<std::byte> to_ = std::vector<std::byte>(kMegabit);
};

TEST_F(TwoEnds, AMessageTakesItsBytesAndTheLatency) {
  zero_.post_send(1, from_);
  one_.post_receive(0, to_);
  EXPECT_EQ(to_, from_);
  EXPECT_TRUE(zero_.wait_send(1, 1s).is_ok());
  EXPECT_EQ(clock_.now(), 1000us);
  EXPECT_TRUE(one_.wait_receive(0, 1s).is_ok());
  EXPECT_EQ(clock_.now(), 1050us);
  EXPECT_EQ(zero_.sent_bytes().inter, kMegabit);
  EXPECT_EQ(zero_.sent_bytes().intra, 0U);
}

TEST_F(TwoEnds, WhoeverPostsSecondStartsTheMessage) {
  one_.post_receive(0, to_);
  clock_.advance(300us);
  zero_.post_send(1, from_);
  EXPECT_TRUE(one_.wait_receive(0, 1s).is_ok());
  EXPECT_EQ(clock_.now(), 1350us);
}

TEST_F(TwoEnds, ALateWakeUpIsMadeUpFor) {
  one_.post_receive(0, to_);
  zero_.post_send(1, from_);
  std::vector<std::byte> back(kMegabit);
  zero_.post_receive(1, back);
  clock_.wake_late(200us);
  EXPECT_TRUE(one_.wait_receive(0, 1s).is_ok());
  EXPECT_EQ(clock_.now(), 1250us);
  clock_.wake_late(0us);
  one_.post_send(0, to_);
  EXPECT_TRUE(zero_.wait_receive(1, 1s).is_ok());
  EXPECT_EQ(clock_.now(), 2100us) << "the answer counts from the arrival on";
}

TEST_F(TwoEnds, MessagesArriveInOrderAndOneAfterTheOther) {
  std::vector<std::vector<std::byte>> landed(3, std::vector<std::byte>(kMegabit));
  for (std::size_t i = 0; i < 3; ++i) {
    one_.post_receive(0, landed[i]);
    zero_.post_send(1, from_);
  }
  for (int i = 1; i <= 3; ++i) {
    EXPECT_TRUE(one_.wait_receive(0, 1s).is_ok());
    EXPECT_EQ(clock_.now(), i * 1000us + 50us);
  }
}

TEST_F(TwoEnds, ASilentPeerIsLostAfterTheTimeout) {
  EXPECT_TRUE(one_.begin({}).is_ok());
  one_.post_receive(0, to_);
  const Status status = one_.wait_receive(0, 250ms);
  EXPECT_EQ(clock_.now(), 250ms);
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.message(),
            "rank 0 has not answered for 250 ms; it has begun 0 calls, this is call 1; raise "
            "timeout_s if it may be busy for longer");
  EXPECT_EQ(zero_.begin({}).message(), status.message()) << "all learn the same";
}

TEST_F(TwoEnds, ASlowLinkIsNoSilence) {
  std::vector<std::byte> large(100 * kMegabit);
  std::vector<std::byte> landed(large.size());
  zero_.post_send(1, large);
  one_.post_receive(0, landed);
  EXPECT_TRUE(one_.wait_receive(0, 1ms).is_ok());
  EXPECT_EQ(clock_.now(), 100'050us);
}

TEST_F(TwoEnds, ALeftPeerIsLostAtOnceButWhatItSentArrives) {
  one_.post_receive(0, to_);
  zero_.post_send(1, from_);
  std::vector<std::byte> more(1);
  one_.post_receive(0, more);
  zero_.close();
  EXPECT_TRUE(one_.wait_receive(0, 1s).is_ok());
  const Status status = one_.wait_receive(0, 10s);
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_NE(status.message().find("rank 0 has left the group"), std::string::npos);
  EXPECT_LT(clock_.now(), 1s) << "waited for the timeout";
}

TEST_F(TwoEnds, WhatALeftPeerHadPostedIsNotTouched) {
  one_.post_receive(0, to_);
  one_.close();
  zero_.post_send(1, from_);
  EXPECT_EQ(to_[0], std::byte{0});
  const Status status = zero_.wait_send(1, 10s);
  EXPECT_EQ(status.message(), "rank 1 has left the group");
  EXPECT_EQ(clock_.now(), 0s) << "waited although the peer is known to be gone";
}

TEST_F(TwoEnds, SizesThatDifferAreToldToBoth) {
  one_.post_receive(0, std::span(to_).first(10));
  zero_.post_send(1, std::span(from_).first(12));
  for (const Status& status : {one_.wait_receive(0, 1s), zero_.wait_send(1, 1s)}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(), "rank 0 sends 12 B where rank 1 wants 10 B");
  }
}

}  // namespace
}  // namespace gradpress::comm
