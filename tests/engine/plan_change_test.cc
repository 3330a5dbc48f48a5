// Plans that follow each other: one gradient, nothing lost, no trace of NaN.
#include <filesystem>
#include <limits>

#include "engine/engine_workers.h"

namespace gradpress {
namespace {

using test::alike;
using test::gradients_of;
using test::Ledger;
using test::on_every_rank;
using test::plan_by_hand;
using Gradients = test::EngineGradients;

constexpr const char* kFlat = "Comp@device > allgather@flat > Decomp@device";
constexpr const char* kHierarchical =
    "reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@host > allgather@intra2";
constexpr const char* kExchanged =
    "Comp@host > alltoall@flat > Decomp@host > Comp@device > allgather@flat > Decomp@device";
constexpr const char* kSummed = "Comp@device > allreduce@flat > Decomp@device";

/// ACP-SGD whose two steps have buckets of their own, a vector beside the matrices.
Plan alternating_plan() {
  Plan plan = plan_by_hand("acpsgd:2", kSummed);
  plan.alternates = true;
  // fc.weight, fc.bias, conv.weight, conv.bias, embedding
  const std::array<std::uint32_t, 5> p{7, 7, 2, 9, 2};
  const std::array<std::uint32_t, 5> q{0, 4, 0, 3, 3};
  for (std::size_t i = 0; i < p.size(); ++i) {
    plan.tensors[i].bucket = p[i];
    plan.tensors[i].bucket_q = q[i];
  }
  return plan;
}

TEST(PlanChange, NothingIsLostAndEveryRankHoldsTheSame) {
  const std::vector<Plan> plans{plan_by_hand("topk:0.05", kHierarchical),
                                plan_by_hand("efsign", kExchanged), alternating_plan(),
                                plan_by_hand("int8", kFlat), alternating_plan()};
  constexpr unsigned kEach = 3;
  Ledger ledger;
  test::History history(static_cast<unsigned>(plans.size()) * kEach);
  EngineOptions options{.codec = "dgc:0.05", .feedback = true};
  const auto failures = on_every_rank(alike(options), [&](unsigned rank, Engine& engine) {
    unsigned step = 0;
    for (const Plan& plan : plans) {
      const Status set = engine.set_plan(plan);
      ASSERT_TRUE(set.is_ok()) << set.message();
      EXPECT_EQ(engine.running(), "plan");
      for (unsigned turn = 0; turn < kEach; ++turn, ++step) {
        Gradients& gradients = history.steps[rank][step];
        gradients = gradients_of(rank, step);
        ledger.add(gradients, -1.0);
        const auto done = test::run_step(engine, gradients);
        ASSERT_TRUE(done.has_value()) << done.error().message();
        EXPECT_TRUE(done->finite);
        EXPECT_EQ(done->sent.inter, done->promised.inter);
        EXPECT_EQ(done->sent.intra, done->promised.intra);
        ledger.add(gradients, 1.0);
      }
    }
    ledger.add_residuals(engine);
  });
  test::expect_all_ok(failures);
  history.expect_one_gradient();
  EXPECT_LT(ledger.worst(), 2e-3);
}

TEST(PlanChange, MeansThatAreVotedOnGoAlong) {
  constexpr unsigned kSteps = 8;
  const auto run = [&](const std::vector<Plan>& plans) {
    test::History history(kSteps);
    const auto failures = on_every_rank(alike({.codec = "none"}), [&](unsigned rank, Engine& e) {
      for (unsigned step = 0; step < kSteps; ++step) {
        if (step % 4 == 0) {
          ASSERT_TRUE(e.set_plan(plans[step / 4]).is_ok());
        }
        history.steps[rank][step] = gradients_of(rank, step);
        const auto done = test::run_step(e, history.steps[rank][step]);
        ASSERT_TRUE(done.has_value()) << done.error().message();
      }
    });
    test::expect_all_ok(failures);
    history.expect_one_gradient();
    return history;
  };
  // The plan never changes a vote, so that what is left of the change is the mean gradient.
  const Plan gathered = plan_by_hand("signum:0.9", kFlat);
  const Plan exchanged = plan_by_hand("signum:0.9", kExchanged);
  const test::History one = run({gathered, gathered});
  const test::History changed = run({gathered, exchanged});
  EXPECT_TRUE(one.steps == changed.steps);
}

TEST(PlanChange, APlanIsWhatRunsAgain) {
  const auto failures = on_every_rank(alike({.codec = "acpsgd:2"}), [](unsigned, Engine& engine) {
    for (const Plan& plan :
         {engine.plan(), plan_by_hand("topk:0.05", kHierarchical), alternating_plan()}) {
      ASSERT_TRUE(engine.set_plan(plan).is_ok());
      const Plan runs = engine.plan();
      ASSERT_EQ(runs.tensors.size(), plan.tensors.size());
      for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
        EXPECT_EQ(runs.tensors[i].codec, plan.tensors[i].codec);
        EXPECT_EQ(runs.tensors[i].option, plan.tensors[i].option);
      }
      EXPECT_EQ(runs.alternates, plan.alternates);
      ASSERT_TRUE(engine.set_plan(runs).is_ok());
      const Plan again = engine.plan();
      EXPECT_EQ(again.order.inter, runs.order.inter);
      EXPECT_EQ(again.order_q.inter, runs.order_q.inter);
    }
  });
  test::expect_all_ok(failures);
}

TEST(PlanChange, WhatRunsCanBeSavedAndRunAgain) {
  PlanTarget target{.machines = 2, .workers_per_machine = 2};
  for (const EngineTensor& tensor : test::small_model()) {
    target.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
  }
  // Vectors travel beside the factors.
  const auto failures = on_every_rank(alike({.codec = "acpsgd:2"}), [&](unsigned rank, Engine& e) {
    const std::string file = (std::filesystem::temp_directory_path() /
                              ("gradpress_plan_change_test_" + std::to_string(rank) + ".json"))
                                 .string();
    ASSERT_TRUE(save_plan(file, e.plan()).is_ok());
    const auto plan = load_plan(file, target);
    std::filesystem::remove(file);
    ASSERT_TRUE(plan.has_value()) << plan.error().message();
    const std::string before = e.summary();
    ASSERT_TRUE(e.set_plan(*plan).is_ok());
    EXPECT_EQ(e.summary().substr(e.summary().find('\n')), before.substr(before.find('\n')));
  });
  test::expect_all_ok(failures);
}

TEST(PlanChange, BucketsStayInStepWhenOneMeetsInfinity) {
  // The step counts for neither bucket: the next one's buckets mix the tensors of both.
  constexpr unsigned kSteps = 8;
  Ledger ledger;
  test::History history(kSteps);
  EngineOptions options{.plan = alternating_plan()};
  const auto failures = on_every_rank(alike(options), [&](unsigned rank, Engine& engine) {
    for (unsigned step = 0; step < kSteps; ++step) {
      Gradients& gradients = history.steps[rank][step];
      gradients = gradients_of(rank, step);
      const Gradients own = gradients;
      if (step == 2 && rank == 1) gradients[0][5] = std::numeric_limits<float>::infinity();
      const auto done = test::run_step(engine, gradients);
      ASSERT_TRUE(done.has_value()) << done.error().message();
      EXPECT_EQ(done->finite, step != 2);
      EXPECT_EQ(done->sent.inter, done->promised.inter) << "step " << step;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        const bool spoilt = std::isnan(gradients[i].front());
        EXPECT_EQ(spoilt, step == 2 && i < 2) << "step " << step << ", tensor " << i;
      }
      if (!done->finite) continue;
      ledger.add(own, -1.0);
      ledger.add(gradients, 1.0);
    }
    ledger.add_residuals(engine);
  });
  test::expect_all_ok(failures);
  history.expect_one_gradient();
  EXPECT_LT(ledger.worst(), 1e-3);
}

TEST(PlanChange, PlansForOthersAreRefusedWithWhatDiffers) {
  const auto failures = on_every_rank(alike({}), [](unsigned, Engine& engine) {
    const auto message = [&](const Plan& plan) {
      const Status status = engine.set_plan(plan);
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      return status.message();
    };
    Plan plan = plan_by_hand("efsign", kFlat);
    plan.machines = 3;
    EXPECT_NE(message(plan).find("3 machines"), std::string::npos);
    plan = plan_by_hand("efsign", kFlat);
    plan.tensors.pop_back();
    EXPECT_NE(message(plan).find("embedding"), std::string::npos);
    plan = plan_by_hand("efsign", kFlat);
    plan.tensors[2].shape = Shape{3, 3};
    EXPECT_NE(message(plan).find("[3, 3]"), std::string::npos);
    plan = plan_by_hand("efsign", kFlat);
    plan.tensors[2].bucket = plan.tensors[0].bucket;
    plan.tensors[2].option = kExchanged;
    EXPECT_NE(message(plan).find("conv.weight"), std::string::npos);
    plan = plan_by_hand("efsign", kFlat);
    plan.order.inter = {0, 1, 2, 3, 3};
    EXPECT_NE(message(plan).find("bucket 3"), std::string::npos);
    plan.order.inter = {0, 1, 2};
    EXPECT_NE(message(plan).find("embedding"), std::string::npos);
  });
  test::expect_all_ok(failures);
}

}  // namespace
}  // namespace gradpress
