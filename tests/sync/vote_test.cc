// Majority votes: every option that takes them gives the flat majority, ties and zeros included.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/reading.h"
#include "sync/workers.h"

namespace gradpress::test {
namespace {

constexpr std::uint64_t kSeed = 31;
constexpr std::uint64_t kTensor = 0;

using Vectors = std::vector<std::vector<float>>;

/// The textbook: every worker one vote, zeros at random with opposite signs on even and odd ranks,
/// ties by the casting vote.
std::vector<float> majority(const Vectors& gradients, std::uint64_t step) {
  const Words words({.seed = kSeed, .tensor = kTensor, .step = step});
  std::vector<float> result(gradients[0].size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    int sum = 0;
    for (std::size_t rank = 0; rank < gradients.size(); ++rank) {
      const float g = gradients[rank][i];
      const bool odd = ((words[i] & 1U) + rank) % 2 == 1;
      sum += g == 0.0F ? (odd ? -1 : 1) : (g < 0.0F ? -1 : 1);
    }
    if (sum == 0) sum = (words[i] >> 31) != 0 ? -1 : 1;
    result[i] = sum < 0 ? -1.0F : 1.0F;
  }
  return result;
}

/// Minus one, zero or plus one, each as often: many ties, many zeros of both signs.
Vectors votes_of(unsigned workers, std::size_t elements, std::uint64_t step) {
  Vectors all;
  for (unsigned rank = 0; rank < workers; ++rank) {
    const Words words({.seed = 77, .tensor = rank, .step = step});
    std::vector<float> g(elements);
    for (std::size_t i = 0; i < elements; ++i) {
      g[i] = static_cast<float>(static_cast<int>(words[i] % 3) - 1) * 0.25F;
      if (g[i] == 0.0F && words[i] % 2 == 0) g[i] = -0.0F;
    }
    all.push_back(std::move(g));
  }
  return all;
}

/// What every worker holds after a step; empty where the option is refused, with the reason.
struct Outcomes {
  Vectors results;
  std::string refusal;
};

Outcomes vote(Workers& workers, const plan::Option& option, const Vectors& gradients,
              std::uint64_t step) {
  Outcomes found;
  found.results.resize(workers.size());
  std::mutex mutex;
  workers.run([&](sync::Fabric& fabric) {
    auto message =
        sync::Message::make({.members = members("sign", {Shape::flat(gradients[0].size())}),
                             .option = option,
                             .seed = kSeed},
                            fabric);
    if (!message) {
      const std::scoped_lock lock(mutex);
      found.refusal = message.error().message();
      return;
    }
    Gradients own({gradients[fabric.rank()]});
    const auto outcome = (*message)->run(step, own.spans());
    EXPECT_TRUE(outcome.has_value()) << outcome.error().to_string();
    found.results[fabric.rank()] = own.values()[0];
  });
  return found;
}

class Vote : public ::testing::TestWithParam<comm::Topology> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Vote,
                         ::testing::Values(comm::Topology{1, 1}, comm::Topology{1, 2},
                                           comm::Topology{1, 4}, comm::Topology{2, 2},
                                           comm::Topology{2, 3}, comm::Topology{3, 1},
                                           comm::Topology{4, 1}, comm::Topology{2, 4}),
                         [](const auto& world) {
                           return std::to_string(world.param.machines) + "x" +
                                  std::to_string(world.param.workers_per_machine);
                         });

TEST_P(Vote, IsTheFlatMajorityOnEveryOptionThatTakesIt) {
  Workers workers(GetParam());
  std::size_t taken = 0;
  std::size_t refused = 0;
  std::uint64_t step = 3;
  for (const plan::Option& option : device_options(false)) {
    if (option.is_raw()) continue;
    const Vectors gradients = votes_of(workers.size(), 131, ++step);
    const Outcomes found = vote(workers, option, gradients, step);
    if (!found.refusal.empty()) {
      EXPECT_NE(found.refusal.find("changes the majority"), std::string::npos) << found.refusal;
      ++refused;
      continue;
    }
    ++taken;
    const std::vector<float> wanted = majority(gradients, step);
    for (const auto& result : found.results) {
      ASSERT_EQ(result, wanted) << plan::to_text(option);
    }
  }
  EXPECT_GE(taken, 20U);
  EXPECT_EQ(refused > 0, workers.size() > 1);
}

TEST(VoteOfTwoMachines, IsNeverAMajorityOfMajorities) {
  // + + − on one machine, − − − on the other: two of six.
  Workers workers({2, 3});
  const Vectors gradients = {{1.0F}, {1.0F}, {-1.0F}, {-1.0F}, {-1.0F}, {-1.0F}};
  for (const plan::Option& option : device_options(false)) {
    if (option.is_raw()) continue;
    const Outcomes found = vote(workers, option, gradients, 0);
    if (!found.refusal.empty()) continue;
    for (const auto& result : found.results) ASSERT_EQ(result[0], -1.0F) << plan::to_text(option);
  }
}

/// One message of signum on every worker, over steps.
class MeanVoters {
 public:
  MeanVoters(Workers& workers, const std::string& path, std::size_t elements)
      : workers_(workers), messages_(workers.size()) {
    workers_.run([&](sync::Fabric& fabric) {
      auto made = sync::Message::make({.members = members("signum:0.75", {Shape::flat(elements)}),
                                       .option = option(path),
                                       .seed = kSeed},
                                      fabric);
      if (!made) throw std::runtime_error(made.error().to_string());
      messages_[fabric.rank()] = std::move(*made);
    });
  }

  sync::Message& message(unsigned rank) { return *messages_[rank]; }
  Vectors step(const Vectors& gradients, std::uint64_t step, sync::Outcome wanted) {
    Vectors results(workers_.size());
    workers_.run([&](sync::Fabric& fabric) {
      Gradients own({gradients[fabric.rank()]});
      const auto outcome = messages_[fabric.rank()]->run(step, own.spans());
      EXPECT_TRUE(outcome.has_value() && *outcome == wanted);
      results[fabric.rank()] = own.values()[0];
    });
    return results;
  }

 private:
  Workers& workers_;
  std::vector<std::unique_ptr<sync::Message>> messages_;
};

/// Exact in float: momentum 3/4 of quarters and their sums.
void average(Vectors& means, const Vectors& gradients) {
  for (std::size_t w = 0; w < means.size(); ++w) {
    for (std::size_t i = 0; i < means[w].size(); ++i) {
      means[w][i] = 0.75F * means[w][i] + 0.25F * gradients[w][i];
    }
  }
}

TEST_P(Vote, OnMeansOverTimeIsTheMajorityOfTheirSignsAndASkippedStepLeavesThem) {
  Workers workers(GetParam());
  for (const std::string path :
       {"Comp@device > allgather@flat > Decomp@device",
        "Comp@device > alltoall@flat > Decomp@device > Comp@device > allgather@flat > "
        "Decomp@device"}) {
    MeanVoters voters(workers, path, 131);
    Vectors means(workers.size(), std::vector<float>(131, 0.0F));
    for (std::uint64_t step = 0; step < 6; ++step) {
      Vectors gradients = votes_of(workers.size(), 131, step);
      if (step == 3) {
        gradients.back()[130] = std::nanf("");
        (void)voters.step(gradients, step, sync::Outcome::kNonFinite);
      } else {
        const Vectors results = voters.step(gradients, step, sync::Outcome::kDone);
        average(means, gradients);
        const std::vector<float> wanted = majority(means, step);
        for (const auto& result : results) ASSERT_EQ(result, wanted) << path << ", step " << step;
      }
      for (unsigned rank = 0; rank < workers.size(); ++rank) {
        std::vector<float> kept(131);
        voters.message(rank).copy_momentum(0, kept);
        ASSERT_EQ(kept, means[rank]) << path << ", step " << step << ", rank " << rank;
      }
    }
  }
}

class VoteOnNoise : public ::testing::TestWithParam<unsigned> {
 protected:
  /// The mean over many elements and steps of what a vote makes of these gradients.
  template <class Gradient>
  double mean_vote(const Gradient& gradient) {
    constexpr std::size_t kElements = 4096;
    constexpr std::uint64_t kSteps = 8;
    Workers workers({1, GetParam()});
    double sum = 0.0;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      Vectors gradients;
      for (unsigned rank = 0; rank < GetParam(); ++rank) {
        std::vector<float> g(kElements);
        const Words words({.seed = 5, .tensor = rank, .step = step});
        for (std::size_t i = 0; i < kElements; ++i) g[i] = gradient(rank, words[i]);
        gradients.push_back(std::move(g));
      }
      const Outcomes found =
          vote(workers, option("Comp@device > allgather@flat > Decomp@device"), gradients, step);
      for (const auto& result : found.results) EXPECT_EQ(result, found.results[0]);
      for (const float value : found.results[0]) {
        EXPECT_EQ(std::fabs(value), 1.0F);
        sum += value;
      }
    }
    return sum / static_cast<double>(kElements * kSteps);
  }
  /// Five standard deviations of the mean of 32768 signs.
  static constexpr double kNone = 5.0 / 181.0;
};
INSTANTIATE_TEST_SUITE_P(Workers, VoteOnNoise, ::testing::Values(1U, 2U, 3U, 4U, 8U));

TEST_P(VoteOnNoise, DoesNotDrift) {
  const double drift = mean_vote(
      [](unsigned /*rank*/, std::uint32_t word) { return (word & 1U) != 0 ? 1.0F : -1.0F; });
  EXPECT_LE(std::fabs(drift), kNone);
}

TEST_P(VoteOnNoise, DoesNotDriftWhereAllGradientsAreZero) {
  EXPECT_LE(std::fabs(mean_vote([](unsigned, std::uint32_t) { return 0.0F; })), kNone);
}

TEST_P(VoteOnNoise, HearsTheOnlyWorkerThatHasAGradient) {
  const double alone =
      mean_vote([](unsigned rank, std::uint32_t) { return rank == 0 ? 1.0F : 0.0F; });
  EXPECT_GE(alone, 0.45);
}

}  // namespace
}  // namespace gradpress::test
