// Momentum correction over whole engines: one meaning of the result, whatever encodes.
#include <algorithm>
#include <limits>

#include "engine/engine_workers.h"

namespace gradpress {
namespace {

using test::alike;
using test::gradients_of;
using test::kWorkers;
using test::Ledger;
using test::on_every_rank;
using test::plan_by_hand;
using Gradients = test::EngineGradients;

constexpr const char* kHierarchical =
    "reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@device > allgather@intra2";

EngineOptions with_momentum(const char* codec, bool nesterov = false) {
  return {.codec = codec,
          .momentum = MomentumCorrection{.momentum = 0.5, .nesterov = nesterov, .masking = false}};
}

/// v ← μv + g, or Nesterov's, on the mean.
class Reference {
 public:
  explicit Reference(bool nesterov) : nesterov_(nesterov), velocity_(gradients_of(0, 0)) {
    for (auto& tensor : velocity_) std::ranges::fill(tensor, 0.0F);
  }
  Gradients step(unsigned number) {
    Gradients result = velocity_;
    for (std::size_t i = 0; i < result.size(); ++i) {
      for (std::size_t k = 0; k < result[i].size(); ++k) {
        double mean = 0.0;
        for (unsigned rank = 0; rank < kWorkers; ++rank) {
          if (known_.size() <= number * kWorkers + rank) {
            known_.push_back(gradients_of(rank, number));
          }
          mean += known_[number * kWorkers + rank][i][k] / static_cast<double>(kWorkers);
        }
        double v = velocity_[i][k];
        v = nesterov_ ? 0.5 * (v + mean) : 0.5 * v + mean;
        velocity_[i][k] = static_cast<float>(v);
        result[i][k] = static_cast<float>(nesterov_ ? v + mean : v);
      }
    }
    return result;
  }

 private:
  bool nesterov_;
  Gradients velocity_;
  std::vector<Gradients> known_;
};

double worst_difference(const Gradients& a, const Gradients& b) {
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < a[i].size(); ++k) {
      most = std::max(most, std::abs(static_cast<double>(a[i][k]) - b[i][k]));
    }
  }
  return most;
}

class Meaning : public testing::TestWithParam<bool> {};

TEST_P(Meaning, OfAResultIsTheSameBeforeAndAfterTheMean) {
  // topk:1 sends all: by momentum before the encode the result must be that of momentum after the
  // mean, through every change between the two.
  Reference reference(GetParam());
  std::vector<Gradients> wanted;
  for (unsigned step = 0; step < 8; ++step) wanted.push_back(reference.step(step));
  const auto failures =
      on_every_rank(alike(with_momentum("none", GetParam())), [&](unsigned rank, Engine& engine) {
        for (unsigned step = 0; step < 8; ++step) {
          if (step == 2) {
            ASSERT_TRUE(engine.set_codec("randomk:1").is_ok());
          }
          if (step == 4) {
            ASSERT_TRUE(engine.set_plan(plan_by_hand("topk:1", kHierarchical)).is_ok());
          }
          if (step == 6) {
            ASSERT_TRUE(engine.set_codec("none").is_ok());
          }
          Gradients gradients = gradients_of(rank, step);
          const auto done = test::run_step(engine, gradients);
          ASSERT_TRUE(done.has_value()) << done.error().message();
          EXPECT_LT(worst_difference(gradients, wanted[step]), 1e-4) << "step " << step;
        }
      });
  test::expect_all_ok(failures);
}

INSTANTIATE_TEST_SUITE_P(Momentum, Meaning, testing::Bool(),
                         [](const auto& param) { return param.param ? "Nesterov" : "Plain"; });

TEST(Momentum, NothingIsLostWhateverCodecsFollowEachOther) {
  // Once gradients have ended and all momentum is spent, workers × Σ applied is Σ gradients / (1 −
  // μ), however late each part was sent.
  Ledger ledger;
  test::History history(16 + 40);
  const auto failures =
      on_every_rank(alike(with_momentum("none")), [&](unsigned rank, Engine& engine) {
        unsigned step = 0;
        const auto run = [&](Gradients gradients) {
          ledger.add(gradients, -1.0 / (1.0 - 0.5));
          const auto done = test::run_step(engine, gradients);
          ASSERT_TRUE(done.has_value()) << done.error().message();
          ASSERT_TRUE(done->finite);
          ledger.add(gradients, 1.0);
          history.steps[rank][step++] = std::move(gradients);
        };
        for (const char* codec : {"none", "topk:0.05", "efsign", "dgc:0.05", "acpsgd:2", "plan",
                                  "topk:0.1", "efsign"}) {
          const Status set = std::string_view(codec) == "plan"
                                 ? engine.set_plan(plan_by_hand("topk:0.05", kHierarchical))
                                 : engine.set_codec(codec);
          ASSERT_TRUE(set.is_ok()) << set.message();
          for (unsigned turn = 0; turn < 2; ++turn) run(gradients_of(rank, step));
        }
        ASSERT_TRUE(engine.set_codec("none").is_ok());
        Gradients zeros = gradients_of(rank, 0);
        for (auto& tensor : zeros) std::ranges::fill(tensor, 0.0F);
        for (unsigned turn = 0; turn < 40; ++turn) run(zeros);
      });
  test::expect_all_ok(failures);
  history.expect_one_gradient();
  EXPECT_LT(ledger.worst(), 2e-3);
}

TEST(Momentum, NanLeavesNoTraceInIt) {
  // A run with a spoilt step in the middle ends as the run without that step.
  std::array<Gradients, 2> ends;
  for (const bool spoils : {false, true}) {
    const auto failures =
        on_every_rank(alike(with_momentum("randomk:1")), [&](unsigned rank, Engine& engine) {
          for (unsigned step = 0; step < 6; ++step) {
            Gradients gradients = gradients_of(rank, step);
            if (step == 3) {
              if (!spoils) continue;
              // Both a tensor that a sparsifier encodes and one that travels raw.
              if (rank == 2) gradients[0][3] = std::numeric_limits<float>::quiet_NaN();
              if (rank == 0) gradients[1][3] = std::numeric_limits<float>::infinity();
            }
            const auto done = test::run_step(engine, gradients);
            ASSERT_TRUE(done.has_value()) << done.error().message();
            EXPECT_EQ(done->finite, step != 3);
            if (step == 5 && rank == 0) ends[spoils ? 1 : 0] = gradients;
          }
        });
    test::expect_all_ok(failures);
  }
  // What shared no message with a spoilt one has had a step more.
  EXPECT_LT(worst_difference({ends[0][0]}, {ends[1][0]}), 1e-4);
  EXPECT_LT(worst_difference({ends[0][1]}, {ends[1][1]}), 1e-4);
}

TEST(Momentum, AFactorOutOfRangeIsRefused) {
  EngineOptions options;
  options.momentum = MomentumCorrection{.momentum = 1.0};
  const auto failures = on_every_rank(alike(options), [](unsigned, Engine&) { FAIL(); });
  for (const Status& status : failures) EXPECT_EQ(status.code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gradpress
