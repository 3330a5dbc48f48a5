// Ranks that find together although stores come and go.
#include "comm/meeting.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

namespace gradpress::comm {
namespace {

using namespace std::chrono_literals;
using store::StoreServer;

std::unique_ptr<StoreServer> server_at(unsigned port) {
  bool in_use = false;
  auto server = StoreServer::start({.host = "127.0.0.1", .port = port}, in_use);
  EXPECT_TRUE(server.has_value()) << server.error().to_string();
  return std::move(*server);
}

MeetingOptions two_ranks(unsigned rank, unsigned port) {
  return {.world = {.rank = rank,
                    .size = 2,
                    .store = {.host = "127.0.0.1", .port = port},
                    .store_host = std::nullopt},
          .name = "world",
          .backend = "gloo",
          .patience = 60s};
}

TEST(Meeting, AStoreThatClosesUnderThoseWhoComeIsTriedAgain) {
  auto server = server_at(0);
  const unsigned port = server->port();
  std::thread early([&] {
    const auto meeting = meet(two_ranks(1, port));
    EXPECT_TRUE(meeting.has_value()) << meeting.error().to_string();
  });
  // Until rank 1 stands in the list of the store that is about to close.
  const auto look = store::StoreClient::connect({.host = "127.0.0.1", .port = port}, 30s);
  ASSERT_TRUE((*look)->get("world#0/roll/here/1", 30s).has_value());
  server.reset();
  server = server_at(port);
  const auto meeting = meet(two_ranks(0, port));
  EXPECT_TRUE(meeting.has_value()) << meeting.error().to_string();
  early.join();
}

TEST(Meeting, ANextWorldOfTheSameRanksNeedsAnotherRestartCount) {
  const auto server = server_at(0);
  for (const unsigned restart : {0U, 1U}) {
    std::thread other([&] {
      MeetingOptions options = two_ranks(1, server->port());
      options.world.restart = restart;
      EXPECT_TRUE(meet(std::move(options)).has_value());
    });
    MeetingOptions options = two_ranks(0, server->port());
    options.world.restart = restart;
    EXPECT_TRUE(meet(std::move(options)).has_value());
    other.join();
  }
  const auto again = meet(two_ranks(0, server->port()));
  ASSERT_FALSE(again.has_value());
  EXPECT_NE(again.error().message().find("restart count"), std::string::npos)
      << again.error().message();
}

}  // namespace
}  // namespace gradpress::comm
