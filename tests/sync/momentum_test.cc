// Momentum before the first encode: by which ranks it is held, and that NaN leaves it alone.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "support/gradient.h"
#include "sync/message.h"
#include "sync/workers.h"

namespace gradpress::sync {
namespace {

using test::Gradients;
using test::Workers;

constexpr comm::Topology kTwoByTwo{.machines = 2, .workers_per_machine = 2};

Gradients gradients_of(const MessageSpec& spec, unsigned rank, std::uint64_t step) {
  std::vector<std::vector<float>> values;
  for (const Member& member : spec.members) {
    values.push_back(test::gradient(member.shape.elements(), 1000 * step + 10 * rank));
  }
  return Gradients(std::move(values));
}

class EveryPath : public testing::TestWithParam<const char*> {};

TEST_P(EveryPath, KeepsTheMomentumOfAllWorkersAndNothingOfNan) {
  MessageSpec spec{.members = test::members("topk:0.1", {Shape{301}, Shape{40, 5}}),
                   .option = test::option(GetParam()),
                   .momentum = codec::MomentumOptions{.momentum = 0.5, .masking = false}};
  Workers workers(kTwoByTwo);
  std::mutex mutex;
  std::vector<double> total(301, 0.0);
  workers.run([&](Fabric& fabric) {
    auto message = Message::make(spec, fabric);
    ASSERT_TRUE(message.has_value()) << message.error().message();
    std::vector<double> own(301, 0.0);
    for (std::uint64_t step = 0; step < 3; ++step) {
      Gradients gradients = gradients_of(spec, fabric.rank(), step);
      for (std::size_t i = 0; i < own.size(); ++i) own[i] = 0.5 * own[i] + gradients[0][i];
      const auto outcome = (*message)->run(step, gradients.spans());
      ASSERT_TRUE(outcome.has_value()) << outcome.error().message();
    }
    std::vector<float> before(301);
    std::vector<float> after(301);
    std::vector<float> residual_before(301);
    std::vector<float> residual_after(301);
    (*message)->copy_momentum(0, before);
    (*message)->copy_residual(0, residual_before);
    Gradients spoilt = gradients_of(spec, fabric.rank(), 3);
    if (fabric.rank() == 2) spoilt[1][7] = std::numeric_limits<float>::quiet_NaN();
    const auto outcome = (*message)->run(3, spoilt.spans());
    ASSERT_TRUE(outcome.has_value()) << outcome.error().message();
    EXPECT_EQ(*outcome, Outcome::kNonFinite);
    (*message)->copy_momentum(0, after);
    (*message)->copy_residual(0, residual_after);
    EXPECT_EQ(before, after) << "rank " << fabric.rank();
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_NEAR(residual_before[i], residual_after[i], 1e-4);
    }
    const std::scoped_lock lock(mutex);
    for (std::size_t i = 0; i < own.size(); ++i) total[i] += before[i] - own[i];
  });
  for (const double value : total) EXPECT_LT(std::abs(value), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    Momentum, EveryPath,
    testing::Values("Comp@device > allgather@flat > Decomp@device",
                    "Comp@device > alltoall@flat > Decomp@device > Comp@device > allgather@flat > "
                    "Decomp@device",
                    "reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@device > "
                    "allgather@intra2",
                    "reduce@intra1 > Comp@device > allgather@inter > Decomp@device > "
                    "broadcast@intra2"),
    [](const auto& param) { return "Path" + std::to_string(param.index); });

TEST(SharedMemories, LetTwoMessagesCarryATensorByTurns) {
  // As one message over all steps.
  const auto spec = [](const std::vector<Shape>& shapes, std::uint64_t first) {
    MessageSpec made{.members = test::members("acpsgd:2", shapes),
                     .option = test::option("Comp@device > allreduce@flat > Decomp@device")};
    for (Member& member : made.members) member.tensor += first;
    return made;
  };
  Workers workers(kTwoByTwo);
  workers.run([&](Fabric& fabric) {
    Memories memories;
    const MessageSpec both = spec({Shape{12, 7}, Shape{9, 20}}, 0);
    auto joined = Message::make(both, fabric, {.memories = &memories});
    auto left = Message::make(spec({Shape{12, 7}}, 0), fabric, {.memories = &memories});
    auto right = Message::make(spec({Shape{9, 20}}, 1), fabric, {.memories = &memories});
    auto alone = Message::make(both, fabric);
    ASSERT_TRUE(joined && left && right && alone);
    for (std::uint64_t step = 0; step < 6; ++step) {
      Gradients turns = gradients_of(both, fabric.rank(), step);
      Gradients whole = gradients_of(both, fabric.rank(), step);
      if (step % 2 == 0) {
        ASSERT_TRUE((*joined)->run(step, turns.spans()).has_value());
      } else {
        ASSERT_TRUE((*left)->run(step, turns.spans().first(1)).has_value());
        ASSERT_TRUE((*right)->run(step, turns.spans().last(1)).has_value());
      }
      ASSERT_TRUE((*alone)->run(step, whole.spans()).has_value());
      for (std::size_t member = 0; member < 2; ++member) {
        for (std::size_t i = 0; i < whole[member].size(); ++i) {
          ASSERT_NEAR(whole[member][i], turns[member][i], 1e-5) << "step " << step;
        }
      }
    }
  });
}

}  // namespace
}  // namespace gradpress::sync
