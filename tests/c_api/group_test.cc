// Groups through the C interface, beside the contract: calls that are wrong, stores that are given.
#include <arpa/inet.h>
#include <gradpress/c_api.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "c_api/c_calls.h"
#include "comm/gloo/gloo.h"

namespace gradpress {
namespace {

using test::call;

TEST(CGroups, CallsThatAreWrongAreNamed) {
  const auto group = std::move(test::local_groups(1).front());
  std::uint64_t ticket = 0;
  gradpress_call one = test::call_of(GRADPRESS_BARRIER);
  const auto start = [&] { return call(gradpress_group_start, group.get(), &one, &ticket); };
  one.struct_size = 8;
  EXPECT_REFUSED(start(), "struct_size");
  one.struct_size = sizeof one;
  one.kind = 8;
  EXPECT_REFUSED(start(), "kind");
  one.kind = GRADPRESS_ALL_REDUCE;
  one.type = GRADPRESS_FLOAT64;
  EXPECT_REFUSED(start(), "type");
  one.type = GRADPRESS_FLOAT32;
  one.in_bytes = 4;
  EXPECT_REFUSED(start(), "in is NULL");
  one = test::call_of(GRADPRESS_BARRIER);
  ASSERT_TRUE(start());
  EXPECT_TRUE(call(gradpress_group_wait, group.get(), ticket));
  EXPECT_EQ(gradpress_group_done(group.get(), ticket), 1);
  EXPECT_STREQ(gradpress_group_backend(group.get()), "local");
}

/// A descriptor that listens at a port of the loopback device, or does not.
int tcp_socket(bool listens) {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  if (listens) {
    EXPECT_EQ(listen(descriptor, 16), 0);
  }
  return descriptor;
}

unsigned port_of(int descriptor) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  EXPECT_EQ(getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &length), 0);
  return ntohs(address.sin_port);
}

test::Outcome connect(const std::string& options, test::GroupHandle& group) {
  gradpress_group* made = nullptr;
  test::Outcome outcome = call(gradpress_group_connect, options.c_str(), &made);
  group.reset(made);
  return outcome;
}

TEST(CGroups, AListenerMustListen) {
  if (!comm::has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  test::GroupHandle group;
  const auto with = [&](int descriptor) {
    return connect(R"({"backend": "gloo", "rank": 0, "size": 1, "store_listener": )" +
                       std::to_string(descriptor) + "}",
                   group);
  };
  EXPECT_REFUSED(with(tcp_socket(false)), "store_listener: descriptor");
  EXPECT_REFUSED(with(tcp_socket(false)), "got one that does not listen");
  EXPECT_REFUSED(with(dup(STDERR_FILENO)), "wanted a TCP socket that listens, got no socket");
  EXPECT_REFUSED(with(socket(AF_INET, SOCK_DGRAM, 0)), "got a socket that is not of TCP");
  EXPECT_REFUSED(with(987'654), "got none that is open");
}

TEST(CGroups, OneRankHostsTheStoreAtItsListenerAndItsLossIsItsOwn) {
  if (!comm::has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  const int listener = tcp_socket(true);
  const std::string store = "127.0.0.1:" + std::to_string(port_of(listener));
  std::vector<test::GroupHandle> groups(3);
  const auto common = [](unsigned rank) {
    return R"({"backend": "gloo", "size": 3, "timeout_s": 60, "rank": )" + std::to_string(rank);
  };
  std::vector<std::thread> threads;
  for (const unsigned rank : {0U, 1U, 2U}) {
    threads.emplace_back([&, rank] {
      const std::string where = rank == 1
                                    ? R"(, "store_listener": )" + std::to_string(listener) + "}"
                                    : R"(, "store_host_rank": 1, "store": ")" + store + "\"}";
      const test::Outcome made = connect(common(rank) + where, groups[rank]);
      EXPECT_TRUE(made) << made;
    });
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  EXPECT_EQ(gradpress_group_rank(groups[2].get()), 2U);
  EXPECT_STREQ(gradpress_group_backend(groups[2].get()), "gloo");
  // The host leaves: the others know who.
  groups[1].reset();
  for (const unsigned rank : {0U, 2U}) {
    threads.emplace_back([&, rank] {
      std::uint64_t ticket = 0;
      const gradpress_call barrier = test::call_of(GRADPRESS_BARRIER);
      test::Outcome outcome = call(gradpress_group_start, groups[rank].get(), &barrier, &ticket);
      if (outcome) outcome = call(gradpress_group_wait, groups[rank].get(), ticket);
      EXPECT_EQ(outcome.code, GRADPRESS_PEER_LOST) << outcome;
      EXPECT_TRUE(outcome.tells("rank 1")) << outcome;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CGroups, TheHostIsTheOneWithTheListener) {
  if (!comm::has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  test::GroupHandle group;
  EXPECT_REFUSED(
      connect(
          R"({"backend": "gloo", "rank": 0, "size": 2, "store_host_rank": 1, "store_listener": )" +
              std::to_string(tcp_socket(true)) + "}",
          group),
      "rank 0 has a store_listener, but store_host_rank is 1");
  EXPECT_REFUSED(connect(R"({"backend": "gloo", "rank": 0, "size": 2, "store_host_rank": 2, )"
                         R"("store": "127.0.0.1:1"})",
                         group),
                 "store_host_rank 2 in a world of 2");
}

TEST(CGroups, EnginesOfSubgroupsKnowTheirMachines) {
  auto groups = test::local_groups(4, R"({"workers_per_machine": 2})");
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      // Both of the second machine and of the first, in that order.
      const std::vector<std::uint32_t> ranks = {2, 3, 0, 1};
      gradpress_group* all = nullptr;
      ASSERT_TRUE(
          call(gradpress_group_subgroup, groups[rank].get(), ranks.data(), ranks.size(), &all));
      const auto engine =
          test::make_engine(test::GroupHandle(all), R"([{"name": "w", "shape": [64, 64]}])", "{}");
      std::string text;
      ASSERT_TRUE(test::call_for_text(text, gradpress_engine_describe, engine.get()));
      EXPECT_NE(text.find(R"("machines":2,"workers_per_machine":2)"), std::string::npos) << text;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradpress
