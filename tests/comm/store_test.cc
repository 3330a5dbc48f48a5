// The job's store: what it keeps, whom it makes wait, and what strangers cannot do to it.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/store/client.h"
#include "comm/store/roll_call.h"
#include "comm/store/server.h"
#include "comm/store/wire.h"
#include "support/group.h"

namespace gradpress::comm::store {
namespace {

using namespace std::chrono_literals;

class Store : public ::testing::Test {
 protected:
  Store() {
    bool in_use = false;
    auto started = StoreServer::start({.host = "127.0.0.1", .port = 0}, in_use);
    EXPECT_TRUE(started.has_value());
    server_ = std::move(*started);
  }

  Address address() const { return {.host = "127.0.0.1", .port = server_->port()}; }
  std::unique_ptr<StoreClient> client() const {
    auto made = StoreClient::connect(address(), 30s);
    EXPECT_TRUE(made.has_value()) << made.error().to_string();
    return std::move(*made);
  }
  Socket stranger() const {
    auto socket = connect_to(address(), steady_clock().now() + 30s);
    EXPECT_TRUE(socket.has_value());
    return std::move(*socket);
  }

  std::unique_ptr<StoreServer> server_;
};

/// Whether the store closes the connection, some greeting aside.
bool is_closed(const Socket& socket) {
  const Time deadline = steady_clock().now() + 30s;
  std::array<char, 4096> bytes{};
  while (wait_ready(socket, POLLIN, deadline)) {
    const ssize_t got = recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
  }
  return false;
}

void say(const Socket& socket, std::string_view bytes) {
  const Time deadline = steady_clock().now() + 30s;
  while (!bytes.empty() && wait_ready(socket, POLLOUT, deadline)) {
    const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return;  // it hung up on us
    if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

TEST_F(Store, KeepsWhatItIsToldAndTellsAll) {
  const auto one = client();
  const auto two = client();
  EXPECT_EQ(one->find("a").value(), "");
  ASSERT_TRUE(one->set("a", "1").is_ok());
  ASSERT_TRUE(one->set("ab", std::string(100'000, 'x')).is_ok());
  ASSERT_TRUE(one->set("b", std::string("\0\n", 2)).is_ok());
  EXPECT_EQ(two->get("a", 30s).value(), "1");
  EXPECT_EQ(two->find("b").value(), std::string("\0\n", 2));
  const auto listed = two->list("a");
  ASSERT_TRUE(listed.has_value());
  ASSERT_EQ(listed->size(), 2U);
  EXPECT_EQ((*listed)[0].key, "a");
  EXPECT_EQ((*listed)[1].value.size(), 100'000U);
  ASSERT_TRUE(two->set("a", "").is_ok());
  EXPECT_EQ(one->find("a").value(), "");
}

TEST_F(Store, AddsForEveryoneAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto mine = client();
      for (int turn = 0; turn < 250; ++turn) ASSERT_TRUE(mine->add("sum", 3).has_value());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(client()->add("sum", 0).value(), 3000U);
}

TEST_F(Store, OfThoseWhoClaimAKeyTheFirstWinsAndAllLearnIt) {
  std::vector<std::string> winners(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < winners.size(); ++i) {
    threads.emplace_back([&, i] {
      winners[i] = client()->compare_set("verdict", "", "rank " + std::to_string(i)).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& winner : winners) EXPECT_EQ(winner, winners[0]);
  EXPECT_EQ(client()->compare_set("verdict", winners[0], "other").value(), "other");
  EXPECT_EQ(client()->compare_set("verdict", "wrong", "new").value(), "other");
}

TEST_F(Store, AGetWaitsForItsKeyWhileOthersUseTheSameConnection) {
  const auto shared = client();
  std::thread waiter([&] { EXPECT_EQ(shared->get("late", 60s).value(), "here"); });
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(shared->add("meanwhile", 1).has_value());
  ASSERT_TRUE(shared->set("late", "here").is_ok());
  waiter.join();
}

TEST_F(Store, AGetThatWaitsInVainSaysForWhatAndHowLong) {
  const auto got = client()->get("never", 60ms);
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code(), Code::kPeerLost);
  EXPECT_NE(got.error().message().find("\"never\""), std::string::npos) << got.error().message();
  EXPECT_NE(got.error().message().find("60 ms"), std::string::npos) << got.error().message();
}

TEST_F(Store, ExecutesTheWillOfAConnectionThatEnds) {
  const auto heir = client();
  {
    const auto leaves_in_order = client();
    ASSERT_TRUE(leaves_in_order->set_will("gone/1", "yes").is_ok());
    ASSERT_TRUE(leaves_in_order->set_will("", "").is_ok());
    const auto dies = client();
    ASSERT_TRUE(dies->set_will("gone/2", "yes").is_ok());
  }
  EXPECT_EQ(heir->get("gone/2", 30s).value(), "yes");
  EXPECT_EQ(heir->find("gone/1").value(), "");
}

TEST_F(Store, ToldToStopStillAnswersThoseWhoAreThere) {
  const auto other = client();
  ASSERT_TRUE(other->set("verdict", "rank 3").is_ok());
  std::thread stop([&] { server_.reset(); });
  EXPECT_EQ(other->find("verdict").value_or("nothing"), "rank 3");
  stop.join();
  EXPECT_FALSE(other->find("verdict").has_value());
  EXPECT_TRUE(other->closed());
}

TEST_F(Store, WhoComesBeforeTheHostWaitsForIt) {
  const Address place = address();
  server_.reset();
  std::unique_ptr<StoreClient> early;
  std::thread waiter([&] {
    auto made = StoreClient::connect(place, 60s);
    ASSERT_TRUE(made.has_value()) << made.error().to_string();
    early = std::move(*made);
  });
  std::this_thread::sleep_for(50ms);
  bool in_use = false;
  auto late = StoreServer::start(place, in_use);
  ASSERT_TRUE(late.has_value()) << late.error().to_string();
  waiter.join();
  EXPECT_TRUE(early->set("a", "1").is_ok());
  early.reset();
}

TEST_F(Store, ItsAbsenceIsToldWithAddressAndTime) {
  const Address place = address();
  server_.reset();
  const auto made = StoreClient::connect(place, 50ms);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), Code::kPeerLost);
  EXPECT_NE(made.error().message().find(place.text()), std::string::npos);
  EXPECT_NE(made.error().message().find(" s: "), std::string::npos) << made.error().message();
}

TEST_F(Store, APortThatAnotherHoldsIsTold) {
  bool in_use = false;
  const auto second = StoreServer::start(address(), in_use);
  EXPECT_FALSE(second.has_value());
  EXPECT_TRUE(in_use);
}

TEST_F(Store, HangsUpOnStrangersAndLivesOn) {
  const Socket browser = stranger();
  say(browser, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(is_closed(browser));
  const Socket liar = stranger();
  say(liar, std::string(kGreeting) + Writer().u32(0xFFFFFFFFU).bytes());
  EXPECT_TRUE(is_closed(liar)) << "a question of 4 GB";
  const Socket unknown = stranger();
  say(unknown,
      std::string(kGreeting) + Writer().u8(99).u64(0).text("k").text("").text("").framed());
  EXPECT_TRUE(is_closed(unknown)) << "no such operation";
  EXPECT_TRUE(client()->set("a", "1").is_ok());
}

TEST_F(Store, SurvivesRandomBytes) {
  std::mt19937_64 random(test::run_seed());
  for (int turn = 0; turn < 200; ++turn) {
    const Socket socket = stranger();
    std::string bytes(kGreeting);
    const std::size_t length = random() % 300;
    // Half of them with a length that fits, so that bodies are looked at, too.
    if (turn % 2 == 0) bytes += Writer().u32(static_cast<std::uint32_t>(length)).bytes();
    for (std::size_t i = 0; i < length; ++i) bytes += static_cast<char>(random() % 7);
    say(socket, bytes);
  }
  EXPECT_TRUE(client()->set("a", "1").is_ok());
}

TEST_F(Store, RefusesWhatIsTooMuch) {
  const auto mine = client();
  EXPECT_EQ(mine->set(std::string(kMostKey + 1, 'k'), "v").code(), Code::kInvalidArgument);
  EXPECT_EQ(mine->set("k", std::string(kMostValue + 1, 'v')).code(), Code::kInvalidArgument);
  const std::string large(kMostValue, 'v');
  Status status;
  for (std::size_t i = 0; i <= StoreServer::kMostBytes / kMostValue && status.is_ok(); ++i) {
    status = mine->set("large " + std::to_string(i), large);
  }
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("full"), std::string::npos) << status.message();
  EXPECT_TRUE(mine->set("large 0", "").is_ok());
  EXPECT_TRUE(mine->set("small", "fits again").is_ok());
}

TEST_F(Store, ARollCallEndsWhenAllAreThere) {
  const std::vector<unsigned> members{0, 1, 2};
  std::vector<std::thread> threads;
  for (const unsigned rank : members) {
    threads.emplace_back([&, rank] {
      const Status status = call_roll(*client(), {.key = "g",
                                                  .what = "world",
                                                  .members = members,
                                                  .rank = rank,
                                                  .facts = "3 ranks",
                                                  .patience = 60s});
      EXPECT_TRUE(status.is_ok()) << status.to_string();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Store, ARollCallNamesThoseWhoDidNotCome) {
  const std::vector<unsigned> members{0, 1, 2, 3};
  const Status status = call_roll(*client(), {.key = "g",
                                              .what = "world",
                                              .members = members,
                                              .rank = 2,
                                              .facts = "4 ranks",
                                              .patience = 50ms});
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_NE(status.message().find("ranks 0, 1, 3 of 4 did not come to the store at 127.0.0.1:"),
            std::string::npos)
      << status.message();
}

TEST_F(Store, ARollCallTellsAllOfRanksThatDisagree) {
  const std::vector<unsigned> members{0, 1};
  std::vector<Status> statuses(2);
  std::vector<std::thread> threads;
  for (const unsigned rank : members) {
    threads.emplace_back([&, rank] {
      statuses[rank] = call_roll(*client(), {.key = "g",
                                             .what = "world",
                                             .members = members,
                                             .rank = rank,
                                             .facts = rank == 0 ? "2 ranks" : "3 ranks",
                                             .patience = 60s});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    for (const char* word : {"rank 0 says 2 ranks", "rank 1 says 3 ranks"}) {
      EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    }
  }
}

TEST_F(Store, TwoProcessesCannotBeTheSameRank) {
  const std::vector<unsigned> members{0, 1};
  const RollCall call{.key = "g",
                      .what = "world",
                      .members = members,
                      .rank = 1,
                      .facts = "2 ranks",
                      .patience = 50ms};
  EXPECT_EQ(call_roll(*client(), call).code(), Code::kPeerLost);
  const Status second = call_roll(*client(), call);
  EXPECT_EQ(second.code(), Code::kInvalidArgument);
  EXPECT_NE(second.message().find("rank 1 is claimed by process"), std::string::npos);
}

}  // namespace
}  // namespace gradpress::comm::store
