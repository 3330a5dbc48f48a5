// Engines that go on where others stopped.
#include "engine/engine_workers.h"

namespace gradpress {
namespace {

using test::alike;
using test::gradients_of;
using test::kWorkers;
using test::on_every_rank;
using Gradients = test::EngineGradients;
using Bytes = std::vector<std::byte>;

struct Setup {
  const char* name;
  const char* codec;
  bool momentum = false;
};

EngineOptions options_of(const Setup& setup) {
  EngineOptions options{.codec = setup.codec};
  if (setup.momentum) options.momentum = MomentumCorrection{};
  return options;
}

class Restored : public testing::TestWithParam<Setup> {};

TEST_P(Restored, GoesOnAsIfNeverInterrupted) {
  constexpr unsigned kBefore = 3;
  constexpr unsigned kSteps = 6;
  test::History whole(kSteps);
  test::History parts(kSteps);
  std::array<Bytes, kWorkers> saved;
  const auto run = [](Engine& engine, test::History& history, unsigned rank, unsigned step) {
    Gradients& gradients = history.steps[rank][step];
    gradients = gradients_of(rank, step);
    const auto done = test::run_step(engine, gradients);
    ASSERT_TRUE(done.has_value()) << done.error().message();
    EXPECT_EQ(done->step, step);
  };
  const auto options = alike(options_of(GetParam()));
  test::expect_all_ok(on_every_rank(options, [&](unsigned rank, Engine& engine) {
    for (unsigned step = 0; step < kSteps; ++step) {
      run(engine, whole, rank, step);
      if (step + 1 == kBefore) saved[rank] = engine.checkpoint();
    }
  }));
  test::expect_all_ok(on_every_rank(options, [&](unsigned rank, Engine& engine) {
    const Status status = engine.restore(saved[rank]);
    ASSERT_TRUE(status.is_ok()) << status.message();
    for (unsigned step = kBefore; step < kSteps; ++step) run(engine, parts, rank, step);
  }));
  parts.expect_one_gradient();
  for (unsigned step = kBefore; step < kSteps; ++step) {
    for (std::size_t i = 0; i < whole.steps[0][step].size(); ++i) {
      for (std::size_t k = 0; k < whole.steps[0][step][i].size(); ++k) {
        ASSERT_NEAR(whole.steps[0][step][i][k], parts.steps[0][step][i][k], 1e-4)
            << "step " << step << ", tensor " << i << ", element " << k;
      }
    }
  }
}

TEST_P(Restored, TellsItsResidualsWithoutAnEngine) {
  test::expect_all_ok(
      on_every_rank(alike(options_of(GetParam())), [&](unsigned rank, Engine& engine) {
        for (unsigned step = 0; step < 3; ++step) {
          Gradients gradients = gradients_of(rank, step);
          ASSERT_TRUE(test::run_step(engine, gradients).has_value());
        }
        const Bytes saved = engine.checkpoint();
        const auto residuals = checkpoint_residuals(saved);
        ASSERT_TRUE(residuals.has_value()) << residuals.error().message();
        const Gradients like = gradients_of(rank, 0);
        ASSERT_EQ(residuals->size(), like.size());
        for (std::size_t i = 0; i < like.size(); ++i) {
          std::vector<float> wanted(like[i].size());
          engine.copy_residual(i, wanted);
          EXPECT_EQ((*residuals)[i], wanted) << "tensor " << i;
        }
        Bytes damaged = saved;
        damaged[damaged.size() / 2] ^= std::byte{1};
        EXPECT_EQ(checkpoint_residuals(damaged).error().code(), Code::kCorruptPayload);
      }));
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, Restored,
                         testing::Values(Setup{"None", "none"}, Setup{"AcpSgd", "acpsgd:2"},
                                         Setup{"PowerSgd", "powersgd:2"},
                                         Setup{"TopK", "topk:0.05"}, Setup{"EfSign", "efsign"},
                                         Setup{"Signum", "signum:0.9"},
                                         Setup{"DgcWithMomentum", "dgc:0.05", true},
                                         Setup{"DenseWithMomentum", "none", true}),
                         [](const auto& param) { return param.param.name; });

TEST(Checkpoint, OfAnotherEngineIsRefusedAndDoesNoHarm) {
  std::array<Bytes, kWorkers> saved;
  test::expect_all_ok(on_every_rank(alike({.codec = "acpsgd:2"}), [&](unsigned rank, Engine& e) {
    saved[rank] = e.checkpoint();
  }));
  test::expect_all_ok(on_every_rank(alike({.codec = "efsign"}), [&](unsigned rank, Engine& e) {
    const Status other = e.restore(saved[rank]);
    EXPECT_EQ(other.code(), Code::kInvalidArgument);
    EXPECT_NE(other.message().find("Comp@device"), std::string::npos) << other.message();
    const Bytes own = e.checkpoint();
    EXPECT_TRUE(e.restore(own).is_ok());
    Gradients gradients = gradients_of(rank, 0);
    EXPECT_TRUE(test::run_step(e, gradients).has_value());
  }));
  test::expect_all_ok(on_every_rank(alike({.codec = "acpsgd:2"}), [&](unsigned rank, Engine& e) {
    EXPECT_EQ(e.restore(saved[(rank + 1) % kWorkers]).code(), Code::kInvalidArgument);
    Bytes damaged = saved[rank];
    damaged[damaged.size() / 2] ^= std::byte{4};
    EXPECT_EQ(e.restore(damaged).code(), Code::kCorruptPayload);
    for (const std::size_t size : {std::size_t{0}, std::size_t{15}, saved[rank].size() - 1}) {
      EXPECT_EQ(e.restore(std::span(saved[rank]).first(size)).code(), Code::kCorruptPayload);
    }
    Gradients gradients = gradients_of(rank, 0);
    ASSERT_TRUE(e.ready(0, gradients[0]).is_ok());
    EXPECT_EQ(e.restore(saved[rank]).code(), Code::kInvalidArgument) << "in the middle of a step";
    for (std::size_t i = 1; i < gradients.size(); ++i) (void)e.ready(i, gradients[i]);
    EXPECT_TRUE(e.wait().has_value());
  }));
}

}  // namespace
}  // namespace gradpress
