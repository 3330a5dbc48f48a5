#include "comm/lane.h"

#include <gtest/gtest.h>

#include <array>
#include <stdexcept>

namespace gradpress::comm {
namespace {

Collective named(std::string_view tensor) { return {.tensor = tensor}; }

TEST(Lane, RunsCallsInTheOrderOfStart) {
  std::vector<std::string> order;
  Lane lane([&](const Collective& call) {
    order.emplace_back(call.tensor);
    return Status();
  });
  Ticket last = 0;
  for (int i = 0; i < 100; ++i) {
    // The name is a temporary, and longer than a small string's own memory.
    last = *lane.start(named("a tensor with a rather long name, number " + std::to_string(i)));
    EXPECT_EQ(last, Ticket(i + 1));
  }
  EXPECT_TRUE(lane.wait(last).is_ok());
  EXPECT_TRUE(lane.wait(1).is_ok());
  EXPECT_TRUE(lane.done(last));
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(order[i], "a tensor with a rather long name, number " + std::to_string(i));
  }
}

TEST(Lane, KeepsCountsThatTheCallerHasDropped) {
  std::vector<std::size_t> seen;
  Lane lane([&](const Collective& call) {
    seen.insert(seen.end(), call.counts.begin(), call.counts.end());
    seen.insert(seen.end(), call.receive_counts.begin(), call.receive_counts.end());
    return Status();
  });
  Ticket ticket = 0;
  {
    std::array<std::size_t, 2> counts{1, 2};
    std::array<std::size_t, 2> receive_counts{3, 4};
    ticket = *lane.start({.counts = counts, .receive_counts = receive_counts});
    counts.fill(9);
    receive_counts.fill(9);
  }
  EXPECT_TRUE(lane.wait(ticket).is_ok());
  EXPECT_EQ(seen, (std::vector<std::size_t>{1, 2, 3, 4}));
}

TEST(Lane, TheFirstFailureStaysAndLaterCallsDoNotRun) {
  unsigned runs = 0;
  Lane lane([&](const Collective& call) {
    ++runs;
    return call.tensor == "bad" ? Status::error(Code::kPeerLost, "rank 3 is gone") : Status();
  });
  const Ticket good = *lane.start(named("good"));
  EXPECT_TRUE(lane.wait(good).is_ok());
  const Ticket bad = *lane.start(named("bad"));
  EXPECT_EQ(lane.wait(bad).code(), Code::kPeerLost);
  const auto later = lane.start(named("later"));
  ASSERT_FALSE(later.has_value());
  EXPECT_EQ(later.error().message(), "rank 3 is gone");
  EXPECT_TRUE(lane.wait(good).is_ok()) << "was done before";
  EXPECT_EQ(runs, 2U);
}

TEST(Lane, AnExceptionEndsTheCallNotTheProcess) {
  Lane lane([](const Collective&) -> Status { throw std::runtime_error("no memory"); });
  const Status status = lane.wait(*lane.start(named("x")));
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("no memory"), std::string::npos);
}

TEST(Lane, RefusesTicketsItNeverGave) {
  Lane lane([](const Collective&) { return Status(); });
  EXPECT_EQ(lane.wait(0).code(), Code::kInvalidArgument);
  EXPECT_EQ(lane.wait(1).code(), Code::kInvalidArgument);
}

TEST(Lane, EndsWithCallsStillWaiting) {
  for (int turn = 0; turn < 50; ++turn) {
    Lane lane([](const Collective&) { return Status(); });
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(lane.start(named("x")).has_value());
  }
}

}  // namespace
}  // namespace gradpress::comm
