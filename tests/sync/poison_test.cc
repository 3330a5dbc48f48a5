// NaN in one worker's gradient, and steps that fail: no residual keeps anything of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "support/gradient.h"
#include "support/group.h"
#include "sync/message.h"
#include "sync/workers.h"

namespace gradpress::sync {
namespace {

using test::Gradients;
using test::Workers;

const std::vector<Shape> kShapes = {Shape{37}, Shape{1}, Shape{7, 5}};

Gradients gradients_of(const MessageSpec& spec, unsigned rank, std::uint64_t step) {
  std::vector<std::vector<float>> values;
  for (const Member& member : spec.members) {
    values.push_back(test::gradient(member.shape.elements(),
                                    test::run_seed() + 1000 * step + 10 * rank + member.tensor));
  }
  return Gradients(std::move(values));
}

struct Bad {
  unsigned rank = 0;
  std::size_t member = 0;
  std::size_t element = 0;
  float value = std::numeric_limits<float>::quiet_NaN();
};

/// Two good steps, a bad one, a good one. Returns the first thing that is wrong.
std::string complaint(Workers& workers, const MessageSpec& spec, const Bad& bad) {
  std::mutex mutex;
  std::string text;
  workers.run([&](Fabric& fabric) {
    const auto complain = [&](const std::string& what) {
      const std::lock_guard lock(mutex);
      if (text.empty()) text = "rank " + std::to_string(fabric.rank()) + ": " + what;
    };
    auto message = Message::make(spec, fabric);
    if (!message) return complain(message.error().to_string());
    const auto residuals = [&] {
      std::vector<std::vector<float>> all;
      for (std::size_t m = 0; m < spec.members.size(); ++m) {
        all.emplace_back(spec.members[m].shape.elements());
        (*message)->copy_residual(m, all.back());
      }
      return all;
    };
    const auto run = [&](std::uint64_t step, Gradients& gradients, Outcome wanted) {
      const auto outcome = (*message)->run(step, gradients.spans());
      if (!outcome) {
        complain("step " + std::to_string(step) + ": " + outcome.error().to_string());
        return false;
      }
      if (*outcome == wanted) return true;
      complain("step " + std::to_string(step) + ": ended otherwise than wanted");
      return false;
    };
    for (std::uint64_t step = 0; step < 2; ++step) {
      Gradients good = gradients_of(spec, fabric.rank(), step);
      if (!run(step, good, Outcome::kDone)) return;
    }
    const auto before = residuals();
    Gradients spoilt = gradients_of(spec, fabric.rank(), 2);
    if (fabric.rank() == bad.rank) spoilt[bad.member][bad.element] = bad.value;
    if (!run(2, spoilt, Outcome::kNonFinite)) return;
    for (const std::vector<float>& values : spoilt.values()) {
      for (const float value : values) {
        if (!std::isnan(value)) return complain("a gradient is not NaN");
      }
    }
    const auto after = residuals();
    if (after != before) return complain("a residual is not what it was, bit for bit");
    // The same step once more, as a trainer that skips would not do, but may.
    Gradients good = gradients_of(spec, fabric.rank(), 3);
    if (!run(2, good, Outcome::kDone)) return;
    for (const std::vector<float>& values : good.values()) {
      for (const float value : values) {
        if (!std::isfinite(value)) return complain("poison stayed");
      }
    }
  });
  return text;
}

void expect_no_poison(const comm::Topology& topology, const std::vector<std::string>& codecs,
                      bool extended, std::optional<bool> feedback,
                      const std::vector<Shape>& shapes = kShapes) {
  Workers workers(topology, std::chrono::seconds(5));
  std::size_t run = 0;
  for (const std::string& codec : codecs) {
    for (const plan::Option& option : test::device_options(extended)) {
      if (option.is_raw()) continue;
      const MessageSpec spec{
          .members = test::members(codec, shapes), .option = option, .feedback = feedback};
      const Bad bad{.rank = static_cast<unsigned>(run % workers.size()),
                    .member = run % shapes.size(),
                    .element = run % shapes[run % shapes.size()].elements(),
                    .value = run % 3 == 0 ? std::numeric_limits<float>::infinity()
                                          : std::numeric_limits<float>::quiet_NaN()};
      const std::string text = complaint(workers, spec, bad);
      if (text.find("invalid argument: tensor") != std::string::npos) continue;
      ++run;
      EXPECT_EQ(text, "") << codec << " by " << plan::to_text(option) << ", bad on rank "
                          << bad.rank << " member " << bad.member << " element " << bad.element;
      if (!text.empty()) return;  // the groups may have failed with it
    }
  }
  EXPECT_GT(run, 0U);
}

TEST(Poison, ReachesEveryRankAndNoResidualByEveryPath) {
  expect_no_poison({.machines = 2, .workers_per_machine = 2}, {"topk:0.3", "efsign"}, false, true);
}

TEST(Poison, ReachesEveryRankWithTensorsOfOneElement) {
  expect_no_poison({.machines = 2, .workers_per_machine = 3}, {"efsign"}, false, true, {Shape{1}});
}

TEST(Poison, ReachesEveryRankAlone) {
  expect_no_poison({.machines = 2, .workers_per_machine = 2}, {"int8"}, false, true, {Shape{130}});
}

TEST(Poison, ReachesEveryRankWithoutFeedback) {
  expect_no_poison({.machines = 2, .workers_per_machine = 2}, {"qsgd:4"}, false, false);
}

TEST(Poison, ReachesEveryRankThroughSums) {
  expect_no_poison({.machines = 2, .workers_per_machine = 2}, {"randomk:0.4"}, true, {});
  expect_no_poison({.machines = 2, .workers_per_machine = 2}, {"fp16", "bf16"}, true, true);
  expect_no_poison({.machines = 2, .workers_per_machine = 2}, {"fp16"}, true, {});
}

TEST(Poison, ReachesEveryRankThroughFactors) {
  expect_no_poison({.machines = 2, .workers_per_machine = 2}, {"acpsgd:2", "powersgd:2"}, true, {},
                   {Shape{7, 5}, Shape{4, 6}});
}

TEST(Poison, OfATensorBesideLowRankOnesCounts) {
  Workers workers({.machines = 1, .workers_per_machine = 3});
  for (const char* const codec : {"acpsgd:2", "powersgd:2"}) {
    const bool rounds = std::string(codec).starts_with("powersgd");
    MessageSpec spec{.members = test::members(codec, {Shape{7, 5}, Shape{9}}),
                     .option = test::option(rounds ? "Comp@host > allreduce@flat > Comp@host > "
                                                     "allreduce@flat > Decomp@host"
                                                   : "Comp@host > allreduce@flat > Decomp@host")};
    spec.members[1].codec = "none";
    EXPECT_EQ(complaint(workers, spec, {.rank = 1, .member = 1, .element = 4}), "") << codec;
  }
}

TEST(Poison, SumsThatLeaveTheTypesRangeCount) {
  Workers workers({.machines = 2, .workers_per_machine = 2});
  for (const char* const path :
       {"Comp@host > allreduce@flat > Decomp@host",
        "Comp@host > reduce-scatter@flat > Decomp@host > allgather@flat"}) {
    const MessageSpec spec{.members = test::members("fp16", {Shape{64}}),
                           .option = test::option(path),
                           .feedback = true};
    workers.run([&](Fabric& fabric) {
      auto message = Message::make(spec, fabric);
      ASSERT_TRUE(message.has_value());
      Gradients large({std::vector<float>(64, 0.25F)});
      large[0][40] = 60000.0F;
      const auto outcome = (*message)->run(0, large.spans());
      ASSERT_TRUE(outcome.has_value());
      EXPECT_EQ(*outcome, Outcome::kNonFinite) << path;
      std::vector<float> residual(64);
      (*message)->copy_residual(0, residual);
      EXPECT_EQ(residual, std::vector<float>(64));
    });
  }
}

TEST(Poison, OfRawOptionsReachesEveryRank) {
  Workers workers({.machines = 2, .workers_per_machine = 3}, std::chrono::seconds(5));
  unsigned run = 0;
  for (const plan::Option& option : test::device_options(true)) {
    if (!option.is_raw()) continue;
    for (const auto& shapes :
         {std::vector<Shape>{Shape{37}}, {Shape{1}}, {Shape{37}, Shape{1}, Shape{7, 5}}}) {
      const MessageSpec spec{.members = test::members("none", shapes), .option = option};
      const Bad bad{.rank = run % 6,
                    .member = run % shapes.size(),
                    .element = run % shapes[run % shapes.size()].elements(),
                    .value = run % 3 == 0 ? std::numeric_limits<float>::infinity()
                                          : std::numeric_limits<float>::quiet_NaN()};
      ++run;
      EXPECT_EQ(complaint(workers, spec, bad), "") << plan::to_text(option) << " #" << run;
    }
  }
  EXPECT_GT(run, 6U);
}

TEST(Failure, OfAPeerLeavesResidualsAsTheyWere) {
  const MessageSpec spec{
      .members = test::members("topk:0.3", {Shape{37}}),
      .option = test::option(
          "Comp@host > alltoall@flat > Decomp@host > Comp@host > allgather@flat > Decomp@host")};
  Workers workers({.machines = 1, .workers_per_machine = 3});
  workers.run([&](Fabric& fabric) {
    auto message = Message::make(spec, fabric);
    ASSERT_TRUE(message.has_value());
    Gradients first = gradients_of(spec, fabric.rank(), 0);
    ASSERT_TRUE((*message)->run(0, first.spans()).has_value());
    std::vector<float> before(37);
    (*message)->copy_residual(0, before);
    Gradients second = gradients_of(spec, fabric.rank(), 1);
    if (fabric.rank() == 2) {
      // Leaves in the middle: after the first exchange.
      ASSERT_TRUE((*message)->begin(1, second.spans()).is_ok());
      ASSERT_TRUE((*message)->run_codec(0).is_ok());
      ASSERT_TRUE((*message)->start(1).is_ok());
      ASSERT_TRUE((*message)->wait(1).is_ok());
      Fabric gone = std::move(fabric);
      return;
    }
    const auto outcome = (*message)->run(1, second.spans());
    ASSERT_FALSE(outcome.has_value());
    EXPECT_EQ(outcome.error().code(), Code::kPeerLost);
    EXPECT_NE(outcome.error().message().find("rank 2"), std::string::npos);
    std::vector<float> after(37);
    (*message)->copy_residual(0, after);
    EXPECT_EQ(after, before);
  });
}

}  // namespace
}  // namespace gradpress::sync
