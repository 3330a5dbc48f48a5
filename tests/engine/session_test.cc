// Sessions: what the C interface's tests do not show through it.
#include "engine/session.h"

#include <gradpress/world.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine_workers.h"

namespace gradpress::engine {
namespace {

using test::EngineGradients;
using test::gradients_of;
using test::kWorkers;
using test::small_model;

/// fc.weight and embedding: a branch that some steps do not take.
const std::vector<std::uint32_t> kBranch = {0, 4};

bool in_branch(std::size_t tensor) { return tensor == 0 || tensor == 4; }

template <class Work>
void on_every_rank(const SessionOptions& options, const Work& work) {
  auto worlds = make_local_worlds({.workers = kWorkers, .workers_per_machine = 2});
  ASSERT_TRUE(worlds.has_value());
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] {
      auto session = Session::make(std::move((*worlds)[rank]), small_model(), options);
      ASSERT_TRUE(session.has_value()) << session.error().to_string();
      work(rank, **session);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Sums over the ranks, in double.
class Sums {
 public:
  void add(std::size_t tensor, std::span<const float> values) {
    const std::scoped_lock lock(mutex_);
    auto& sum = sums_[tensor];
    sum.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
  const std::vector<double>& of(std::size_t tensor) const { return sums_[tensor]; }

 private:
  std::mutex mutex_;
  std::array<std::vector<double>, 5> sums_;
};

void add_residuals(Session& session, Sums& sums) {
  for (std::uint32_t i = 0; i < small_model().size(); ++i) {
    std::vector<float> residual(small_model()[i].shape.elements());
    ASSERT_TRUE(session.copy_residual(i, residual).is_ok());
    sums.add(i, residual);
  }
}

double size_of_sum(const std::vector<double>& sum) {
  double squares = 0.0;
  for (const double value : sum) squares += value * value;
  return std::sqrt(squares);
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

/// Hands over one step's gradients; the branch's are marked as unused where the rank does not take
/// it, and come as zeros or not at all.
void push_step(Session& session, EngineGradients& gradients, bool takes_branch, bool zeros_come) {
  for (std::uint32_t i = 0; i < gradients.size(); ++i) {
    if (in_branch(i) && !takes_branch) {
      if (!zeros_come) continue;
      std::ranges::fill(gradients[i], 0.0F);
    }
    ASSERT_TRUE(
        session.ready(i, gradients[i].data(), gradients[i].size(), ElementType::kFloat32).is_ok());
  }
  if (!takes_branch) {
    ASSERT_TRUE(session.mark_unused(kBranch).is_ok());
  }
}

class Unused : public testing::TestWithParam<const char*> {};

TEST_P(Unused, NothingIsLostOfABranchThatNoRankTakes) {
  SessionOptions options{.engine = {.codec = GetParam(), .feedback = true, .least_elements = 30},
                         .return_unused = true};
  Sums before;
  Sums after;
  on_every_rank(options, [&](unsigned rank, Session& session) {
    for (unsigned step = 0; step < 3; ++step) {
      EngineGradients gradients = gradients_of(rank, step);
      push_step(session, gradients, true, false);
      const auto done = session.wait();
      ASSERT_TRUE(done.has_value()) << done.error().to_string();
      EXPECT_EQ(done->unused, 0U);
    }
    add_residuals(session, before);
    for (unsigned step = 3; step < 8; ++step) {
      EngineGradients gradients = gradients_of(rank, step);
      const bool zeros_come = (step + rank) % 2 == 0;
      push_step(session, gradients, false, zeros_come);
      const auto done = session.wait();
      ASSERT_TRUE(done.has_value()) << done.error().to_string();
      EXPECT_EQ(done->unused, 2U);
      if (!zeros_come) continue;
      for (const std::uint32_t tensor : kBranch) {
        for (const float value : gradients[tensor]) ASSERT_EQ(value, 0.0F) << "dropped or not";
      }
    }
    add_residuals(session, after);
  });
  for (const std::uint32_t tensor : kBranch) {
    EXPECT_GT(size_of_sum(before.of(tensor)), 1.0) << "there is something to lose";
    EXPECT_LT(distance(before.of(tensor), after.of(tensor)), 1e-4) << small_model()[tensor].name;
  }
}

TEST_P(Unused, WithoutTheOptionWhatWasDeliveredIsTheCallers) {
  SessionOptions options{.engine = {.codec = GetParam(), .feedback = true, .least_elements = 30}};
  Sums before;
  Sums after;
  on_every_rank(options, [&](unsigned rank, Session& session) {
    for (unsigned step = 0; step < 6; ++step) {
      EngineGradients gradients = gradients_of(rank, step);
      push_step(session, gradients, step < 3, true);
      const auto done = session.wait();
      ASSERT_TRUE(done.has_value());
      EXPECT_EQ(done->unused, step < 3 ? 0U : 2U);
      if (step == 2) add_residuals(session, before);
    }
    add_residuals(session, after);
  });
  EXPECT_GT(distance(before.of(0), after.of(0)), 1e-2) << "else the test above would show nothing";
}

TEST_P(Unused, ATensorThatOneRankUsedIsDelivered) {
  SessionOptions options{.engine = {.codec = GetParam(), .feedback = true, .least_elements = 30}};
  std::vector<std::vector<EngineGradients>> got(2, std::vector<EngineGradients>(kWorkers));
  for (const bool returns : {false, true}) {
    options.return_unused = returns;
    on_every_rank(options, [&](unsigned rank, Session& session) {
      for (unsigned step = 0; step < 4; ++step) {
        EngineGradients gradients = gradients_of(rank, step);
        push_step(session, gradients, rank == 2, true);
        const auto done = session.wait();
        ASSERT_TRUE(done.has_value());
        if (returns) {
          EXPECT_EQ(done->unused, 0U);
        }
        got[returns ? 1 : 0][rank] = std::move(gradients);
      }
    });
  }
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    EXPECT_TRUE(test::same_bits(got[0][rank], got[1][rank])) << "rank " << rank;
    EXPECT_TRUE(test::same_bits(got[1][0], got[1][rank])) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Session, Unused,
                         testing::Values("topk:0.05", "acpsgd:2", "efsign", "dgc:0.05"),
                         [](const auto& param) {
                           std::string name;
                           for (const char c : std::string(param.param)) {
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

TEST(Session, AVoteOnTensorsThatNobodyUsedIsOwedToNobody) {
  const SessionOptions options{.engine = {.codec = "sign", .least_elements = 30},
                               .return_unused = true};
  Sums after;
  on_every_rank(options, [&](unsigned rank, Session& session) {
    EngineGradients gradients = gradients_of(rank, 0);
    push_step(session, gradients, false, true);
    ASSERT_TRUE(session.wait().has_value());
    for (const float value : gradients[0]) ASSERT_EQ(value, 0.0F);
    add_residuals(session, after);
  });
  EXPECT_EQ(size_of_sum(after.of(0)), 0.0);
}

TEST(Session, ResidualsThatARawTensorCarriesOverComeBackToo) {
  const SessionOptions options{.engine = {.codec = "topk:0.05", .least_elements = 30},
                               .return_unused = true};
  Sums before;
  Sums after;
  on_every_rank(options, [&](unsigned rank, Session& session) {
    EngineGradients gradients = gradients_of(rank, 0);
    push_step(session, gradients, true, false);
    ASSERT_TRUE(session.wait().has_value());
    ASSERT_TRUE(session.set_codec("none").is_ok());
    add_residuals(session, before);
    for (unsigned step = 1; step < 3; ++step) {
      gradients = gradients_of(rank, step);
      push_step(session, gradients, false, true);
      ASSERT_TRUE(session.wait().has_value());
    }
    add_residuals(session, after);
  });
  EXPECT_GT(size_of_sum(before.of(0)), 1.0);
  EXPECT_LT(distance(before.of(0), after.of(0)), 1e-4);
}

TEST(Session, AStepThatMetNanReturnsNothing) {
  const SessionOptions options{
      .engine = {.codec = "topk:0.05", .fusion = true, .least_elements = 30},
      .return_unused = true};
  Sums before;
  Sums after;
  on_every_rank(options, [&](unsigned rank, Session& session) {
    for (unsigned step = 0; step < 2; ++step) {
      EngineGradients gradients = gradients_of(rank, step);
      if (step == 1 && rank == 3) gradients[2][5] = NAN;
      push_step(session, gradients, step == 0, true);
      const auto done = session.wait();
      ASSERT_TRUE(done.has_value());
      EXPECT_EQ(done->finite, step == 0);
      add_residuals(session, step == 0 ? before : after);
    }
  });
  for (const std::uint32_t tensor : kBranch) {
    EXPECT_LT(distance(before.of(tensor), after.of(tensor)), 1e-4);
  }
}

TEST(Session, CloseInTheMiddleOfAStepIsAPeerLostForTheOthers) {
  on_every_rank({}, [&](unsigned rank, Session& session) {
    EngineGradients gradients = gradients_of(rank, 0);
    if (rank == 1) {
      ASSERT_TRUE(session.ready(0, gradients[0].data(), gradients[0].size(), ElementType::kFloat32)
                      .is_ok());
      session.close();
      EXPECT_EQ(session.next(std::nullopt)->kind, SessionEvent::Kind::kClosed);
      return;
    }
    push_step(session, gradients, true, false);
    const auto done = session.wait();
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code(), Code::kPeerLost) << done.error().to_string();
    // The gradients belong to the engine until this returned.
    session.close();
  });
}

}  // namespace
}  // namespace gradpress::engine
