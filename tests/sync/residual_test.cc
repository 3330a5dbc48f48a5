// Residuals that are handed from one message to another when a plan changes.
#include <gtest/gtest.h>

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

struct Leg {
  std::string codec;
  std::string option;
};

/// Every kind of residual: of the whole gradient, of a piece, of replicas, of a root, of factors,
/// and none at all.
const std::vector<Leg> kLegs = {
    {"topk:0.1", "Comp@host > allgather@flat > Decomp@host"},
    {"efsign",
     "reduce-scatter@intra1 > allreduce@inter > Comp@host > allgather@intra2 > Decomp@host"},
    {"none", "allreduce@flat"},
    {"onebit", "Comp@host > gather@flat > Decomp@host > Comp@host > broadcast@flat > Decomp@host"},
    {"acpsgd:2", "Comp@host > allreduce@flat > Decomp@host"},
    {"randomk:0.3",
     "reduce-scatter@intra1 > Comp@host > allreduce@inter > Decomp@host > "
     "allgather@intra2"},
    {"powersgd:2", "Comp@host > allreduce@flat > Comp@host > allreduce@flat > Decomp@host"},
    {"int8",
     "Comp@host > alltoall@intra1 > Decomp@host > reduce-scatter@inter > Comp@host > "
     "allgather@inter > allgather@intra2 > Decomp@host"},
    {"qsgd:4", "Comp@host > allgather@flat > Decomp@host"},
};

TEST(Residual, IsHandedFromPlanToPlanWithoutLoss) {
  const Shape shape{9, 7};
  const std::size_t elements = shape.elements();
  Workers workers({.machines = 2, .workers_per_machine = 2});
  std::mutex mutex;
  std::vector<double> gradients(elements);
  std::vector<double> applied(elements);
  std::vector<double> kept(elements);
  workers.run([&](Fabric& fabric) {
    std::vector<float> share(elements);
    std::uint64_t step = 0;
    for (const Leg& leg : kLegs) {
      auto message = Message::make({.members = {{.name = "w", .shape = shape, .codec = leg.codec}},
                                    .option = test::option(leg.option),
                                    .feedback = leg.codec != "none"},
                                   fabric);
      ASSERT_TRUE(message.has_value()) << message.error().to_string();
      ASSERT_TRUE((*message)->give_residual(0, share).is_ok());
      std::vector<float> copied(elements);
      (*message)->copy_residual(0, copied);
      for (std::size_t i = 0; i < elements; ++i) EXPECT_NEAR(copied[i], share[i], 1e-6F);
      for (int i = 0; i < 3; ++i, ++step) {
        Gradients own({test::gradient(elements, 100 * step + fabric.rank())});
        {
          const std::lock_guard lock(mutex);
          for (std::size_t e = 0; e < elements; ++e) gradients[e] += own[0][e];
        }
        ASSERT_TRUE((*message)->run(step, own.spans()).has_value());
        const std::lock_guard lock(mutex);
        for (std::size_t e = 0; e < elements; ++e) applied[e] += own[0][e];
      }
      (*message)->take_residual(0, share);
      (*message)->copy_residual(0, copied);
      EXPECT_EQ(copied, std::vector<float>(elements)) << "take leaves zero behind";
    }
    const std::lock_guard lock(mutex);
    for (std::size_t e = 0; e < elements; ++e) kept[e] += share[e];
  });
  for (std::size_t e = 0; e < elements; ++e) {
    EXPECT_NEAR(applied[e] + kept[e], gradients[e], 0.02 + 1e-4 * std::fabs(gradients[e])) << e;
  }
}

TEST(Residual, ScalesWithEveryState) {
  Workers workers({.machines = 2, .workers_per_machine = 2});
  workers.run([](Fabric& fabric) {
    for (const Leg& leg : kLegs) {
      auto message =
          Message::make({.members = {{.name = "w", .shape = Shape{9, 7}, .codec = leg.codec}},
                         .option = test::option(leg.option)},
                        fabric);
      ASSERT_TRUE(message.has_value());
      Gradients own({test::gradient(63, fabric.rank())});
      ASSERT_TRUE((*message)->run(0, own.spans()).has_value());
      ASSERT_TRUE((*message)->give_residual(0, test::gradient(63, 50 + fabric.rank())).is_ok());
      std::vector<float> before(63);
      std::vector<float> after(63);
      (*message)->copy_residual(0, before);
      (*message)->scale_residuals(0.5F);
      (*message)->copy_residual(0, after);
      for (std::size_t i = 0; i < 63; ++i) {
        EXPECT_NEAR(after[i], 0.5F * before[i], 1e-4F * (1.0F + std::fabs(before[i])));
      }
    }
  });
}

TEST(Residual, OfWrongSizeOrNotFiniteIsRefused) {
  Workers workers({.machines = 1, .workers_per_machine = 1});
  auto message = Message::make(
      {.members = test::members("none", {Shape{3}}), .option = test::option("allreduce@flat")},
      workers.fabric(0));
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ((*message)->give_residual(0, std::vector<float>(2)).code(), Code::kInvalidArgument);
  EXPECT_EQ((*message)
                ->give_residual(0, std::vector<float>(3, std::numeric_limits<float>::infinity()))
                .code(),
            Code::kNonFinite);
}

}  // namespace
}  // namespace gradpress::sync
