#include "comm/local/link.h"

#include <gtest/gtest.h>

namespace gradpress::comm {
namespace {

using namespace std::chrono_literals;

TEST(ParseLink, TakesRatesAndLatencies) {
  EXPECT_EQ(*parse_link("1gbit,50us"), (Link{.bits_per_second = 1'000'000'000, .latency = 50us}));
  EXPECT_EQ(*parse_link("100mbit"), (Link{.bits_per_second = 100'000'000}));
  EXPECT_EQ(*parse_link("2.5gbit,1.5ms"),
            (Link{.bits_per_second = 2'500'000'000, .latency = 1500us}));
  EXPECT_EQ(*parse_link("500kbit,0us"), (Link{.bits_per_second = 500'000}));
  EXPECT_EQ(*parse_link("unlimited"), Link{});
  EXPECT_EQ(*parse_link("unlimited,10us"), (Link{.latency = 10us}));
}

TEST(ParseLink, SaysWhatWasWanted) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "wanted a rate such as 1gbit"},
      {"fast", "got \"fast\""},
      {"1gb", "got \"1gb\""},
      {"1", "got \"1\""},
      {"-1gbit", "got \"-1gbit\""},
      {"0gbit", "got \"0gbit\""},
      {"nangbit", "got \"nangbit\""},
      {"1e30gbit", "got \"1e30gbit\""},
      {"1gbit,", "wanted a latency such as 50us"},
      {"1gbit,50", "got \"50\""},
      {"1gbit,-1us", "got \"-1us\""},
      {"1gbit,50us,3", "got \"50us,3\""},
  };
  for (const auto& [text, words] : cases) {
    const auto link = parse_link(text);
    ASSERT_FALSE(link.has_value()) << text;
    EXPECT_EQ(link.error().code(), Code::kInvalidArgument);
    EXPECT_NE(link.error().message().find(words), std::string::npos) << link.error().message();
  }
}

TEST(ParseLink, TextAndLinkGoBothWays) {
  for (const char* text : {"1gbit,50us", "100mbit", "2.5gbit,1.5ms", "unlimited", "500kbit,1us"}) {
    EXPECT_EQ(to_text(*parse_link(text)), text);
  }
}

TEST(Card, TakesOneMessageAfterTheOther) {
  Card card(1'000'000'000);
  EXPECT_EQ(card.take(125'000, 10us), 1010us);  // 1 Mbit at 1 Gbit/s
  EXPECT_EQ(card.take(125'000, 20us), 2010us) << "waits for the first";
  EXPECT_EQ(card.take(125'000, 5000us), 6000us) << "the card was idle";
  EXPECT_EQ(card.take(0, 5000us), 6000us) << "an empty message keeps its place";
}

TEST(Card, IsExactForHugeMessagesAndFreeWithoutARate) {
  Card slow(1000);
  EXPECT_EQ(slow.take(std::size_t{1} << 33, 0s), std::chrono::nanoseconds(68'719'476'736'000'000));
  Card free(0);
  EXPECT_EQ(free.take(1 << 30, 7us), 7us);
}

TEST(Network, MachinesShareOneCardPerDirection) {
  // Two machines of two: both workers of machine 0 send to machine 1 at the same time.
  Network network({.machines = 2, .workers_per_machine = 2},
                  {.bits_per_second = 1'000'000'000, .latency = 50us}, {});
  const Transfer first = network.transfer(0, 2, 125'000, 0us);
  EXPECT_EQ(first.sent, 1000us);
  EXPECT_EQ(first.delivered, 1050us);
  const Transfer second = network.transfer(1, 3, 125'000, 0us);
  EXPECT_EQ(second.sent, 2000us);
  EXPECT_EQ(second.delivered, 2050us);
  EXPECT_EQ(network.transfer(2, 0, 125'000, 0us).delivered, 1050us) << "full duplex";
  EXPECT_EQ(network.transfer(0, 1, 125'000, 3us).delivered, 3us) << "intra is unlimited";
}

TEST(Network, TheReceiversCardIsABottleneckToo) {
  Network network({.machines = 3}, {.bits_per_second = 1'000'000'000}, {});
  EXPECT_EQ(network.transfer(1, 0, 125'000, 0us).delivered, 1000us);
  const Transfer second = network.transfer(2, 0, 125'000, 0us);
  EXPECT_EQ(second.sent, 1000us) << "its own card is free";
  EXPECT_EQ(second.delivered, 2000us);
}

TEST(Network, WorkersOfOneMachineHaveCardsOfTheirOwn) {
  Network network({.machines = 1, .workers_per_machine = 4}, {},
                  {.bits_per_second = 1'000'000'000, .latency = 5us});
  EXPECT_EQ(network.transfer(0, 1, 125'000, 0us).delivered, 1005us);
  EXPECT_EQ(network.transfer(2, 3, 125'000, 0us).delivered, 1005us);
  EXPECT_EQ(network.transfer(0, 3, 125'000, 0us).delivered, 2005us);
}

TEST(Topology, KnowsWhoSharesAMachine) {
  const Topology topology{.machines = 2, .workers_per_machine = 3};
  EXPECT_EQ(topology.intra_ranks(4), (std::vector<unsigned>{3, 4, 5}));
  EXPECT_EQ(topology.inter_ranks(4), (std::vector<unsigned>{1, 4}));
}

}  // namespace
}  // namespace gradpress::comm
