#include "engine/program.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace gradpress::engine {
namespace {

constexpr comm::Topology kTwoByTwo{.machines = 2, .workers_per_machine = 2};
constexpr const char* kHierarchical =
    "reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@host > allgather@intra2";

sync::MessageSpec message(std::uint64_t tensor, const char* option, const char* codec = "efsign") {
  return {.members = {{.name = std::string("w").append(std::to_string(tensor)),
                       .shape = Shape{5},
                       .tensor = tensor,
                       .codec = codec}},
          .option = *plan::parse_option(option)};
}

Program hierarchical_program(unsigned messages) {
  Program program;
  for (unsigned i = 0; i < messages; ++i) program.messages.push_back(message(i, kHierarchical));
  program.order = natural_order(program.messages, kTwoByTwo);
  return program;
}

TEST(Order, NaturalOrderOverlapsTheLinks) {
  const Program program = hierarchical_program(3);
  EXPECT_TRUE(check_order(program, kTwoByTwo).is_ok());
  const auto& intra = program.order[0];
  const auto& inter = program.order[1];
  ASSERT_EQ(intra.size(), 6U);
  ASSERT_EQ(inter.size(), 3U);
  // The second message's first stage does not wait for the first message's last.
  EXPECT_EQ(intra[0], (Turn{.message = 0, .stage = 0}));
  EXPECT_EQ(intra[1], (Turn{.message = 1, .stage = 0}));
  EXPECT_EQ(inter[0], (Turn{.message = 0, .stage = 2}));
}

TEST(Order, GroupsOfOneTakeNoTurn) {
  const std::vector<sync::MessageSpec> messages{message(0, kHierarchical)};
  const auto one_machine = natural_order(messages, {.machines = 1, .workers_per_machine = 4});
  EXPECT_EQ(one_machine[0].size(), 2U);
  EXPECT_TRUE(one_machine[1].empty());
  const auto single_workers = natural_order(messages, {.machines = 4, .workers_per_machine = 1});
  EXPECT_TRUE(single_workers[0].empty());
  EXPECT_EQ(single_workers[1].size(), 1U);
}

TEST(Order, AMissingTurnIsNamed) {
  Program program = hierarchical_program(2);
  program.order[1].pop_back();
  const Status status = check_order(program, kTwoByTwo);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("w1"), std::string::npos) << status.message();
}

TEST(Order, TurnsAgainstTheStagesAreRefused) {
  Program program = hierarchical_program(2);
  // Message 0's last stage first: it needs its own first one, which stands behind it.
  std::ranges::reverse(program.order[0]);
  EXPECT_EQ(check_order(program, kTwoByTwo).code(), Code::kInvalidArgument);
}

TEST(Order, ACircleOverTwoLinksIsRefused) {
  Program program = hierarchical_program(2);
  // intra: both stages of 0, then both of 1; inter: 1 before 0. Each waits for the other.
  program.order[0] = {{.message = 0, .stage = 0},
                      {.message = 0, .stage = 4},
                      {.message = 1, .stage = 0},
                      {.message = 1, .stage = 4}};
  program.order[1] = {{.message = 1, .stage = 2}, {.message = 0, .stage = 2}};
  EXPECT_EQ(check_order(program, kTwoByTwo).code(), Code::kInvalidArgument);
}

TEST(Order, ATurnTwiceIsRefused) {
  Program program = hierarchical_program(2);
  program.order[1].push_back(program.order[1].front());
  EXPECT_EQ(check_order(program, kTwoByTwo).code(), Code::kInvalidArgument);
}

TEST(Order, ATurnOfCodecWorkIsRefused) {
  Program program = hierarchical_program(1);
  program.order[1].insert(program.order[1].begin(), Turn{.message = 0, .stage = 1});
  EXPECT_EQ(check_order(program, kTwoByTwo).code(), Code::kInvalidArgument);
}

TEST(Order, ATimelinesOrderIsItsStarts) {
  const std::vector<sync::MessageSpec> messages{message(0, "allreduce@flat"),
                                                message(1, "allreduce@flat")};
  const std::vector<plan::Span> spans{
      {.lane = plan::Lane::kInter, .kind = plan::SpanKind::kComm, .message = 1, .start_us = 1.0},
      {.lane = plan::Lane::kInter, .kind = plan::SpanKind::kComm, .message = 0, .start_us = 5.0},
      {.lane = plan::Lane::kDevice, .kind = plan::SpanKind::kBackward, .message = 0}};
  const auto order = order_of(spans, messages, kTwoByTwo);
  EXPECT_EQ(order[1], (std::vector<Turn>{{.message = 1, .stage = 0}, {.message = 0, .stage = 0}}));
}

}  // namespace
}  // namespace gradpress::engine
