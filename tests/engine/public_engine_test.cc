#include <gradpress/engine.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <random>
#include <thread>

#include "comm/local/local.h"

namespace gradpress {
namespace {

constexpr unsigned kWorkers = 4;

std::vector<EngineTensor> tensors() {
  return {{.name = "fc.weight", .shape = Shape{40, 60}},
          {.name = "fc.bias", .shape = Shape{40}},
          {.name = "conv.weight", .shape = Shape{16, 8, 3, 3}},
          {.name = "conv.bias", .shape = Shape{16}},
          {.name = "embedding", .shape = Shape{1001, 3}}};
}

using Gradients = std::vector<std::vector<float>>;

Gradients gradients_of(unsigned rank, unsigned step) {
  std::mt19937 random(100 * step + rank);
  std::normal_distribution<float> normal;
  Gradients gradients;
  for (const EngineTensor& tensor : tensors()) {
    std::vector<float>& gradient = gradients.emplace_back(tensor.shape.elements());
    for (float& value : gradient) value = normal(random);
  }
  return gradients;
}

/// Runs work(rank, engine) on every worker's thread; returns what went wrong in making engines.
template <class Work>
std::vector<Status> on_every_rank(const std::array<EngineOptions, kWorkers>& options,
                                  const Work& work) {
  auto world = comm::make_local_world({.topology = {.machines = 2, .workers_per_machine = 2}});
  std::vector<Status> failures(kWorkers);
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] {
      auto engine = Engine::make(
          {.group = std::move((*world)[rank]), .machines = 2, .workers_per_machine = 2}, tensors(),
          options[rank]);
      if (!engine) {
        failures[rank] = engine.error();
        return;
      }
      work(rank, **engine);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return failures;
}

std::array<EngineOptions, kWorkers> alike(const EngineOptions& options) {
  return {options, options, options, options};
}

/// workers × Σ applied + Σ residuals − Σ gradients, per element: zero when nothing is lost.
struct Ledger {
  std::mutex mutex;
  std::vector<std::vector<double>> balance;

  Ledger() {
    for (const EngineTensor& tensor : tensors()) balance.emplace_back(tensor.shape.elements());
  }
  void add(std::size_t tensor, std::span<const float> values, double factor) {
    const std::scoped_lock lock(mutex);
    for (std::size_t i = 0; i < values.size(); ++i) balance[tensor][i] += factor * values[i];
  }
  double worst() const {
    double most = 0.0;
    for (const auto& tensor : balance) {
      for (const double value : tensor) most = std::max(most, std::abs(value));
    }
    return most;
  }
};

class EveryCodec : public testing::TestWithParam<const char*> {};

TEST_P(EveryCodec, NothingIsLostWhateverCodecsFollowEachOther) {
  Ledger ledger;
  EngineOptions options{.codec = GetParam(), .feedback = true, .least_elements = 30};
  const auto failures = on_every_rank(alike(options), [&](unsigned rank, Engine& engine) {
    unsigned step = 0;
    for (const char* codec : {GetParam(), "topk:0.05", GetParam(), "int8", "none"}) {
      ASSERT_TRUE(engine.set_codec(codec).is_ok());
      for (unsigned turn = 0; turn < 3; ++turn, ++step) {
        Gradients gradients = gradients_of(rank, step);
        for (std::size_t i = 0; i < gradients.size(); ++i) ledger.add(i, gradients[i], -1.0);
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          ASSERT_TRUE(engine.ready(i, gradients[i]).is_ok());
        }
        const auto done = engine.wait();
        ASSERT_TRUE(done.has_value()) << done.error().message();
        EXPECT_TRUE(done->finite);
        EXPECT_EQ(done->step, step);
        EXPECT_EQ(done->sent.inter, done->promised.inter);
        EXPECT_EQ(done->sent.intra, done->promised.intra);
        // All hold the same: each rank's copy stands for its own gradient.
        for (std::size_t i = 0; i < gradients.size(); ++i) ledger.add(i, gradients[i], 1.0);
      }
    }
    for (std::size_t i = 0; i < tensors().size(); ++i) {
      std::vector<float> residual(tensors()[i].shape.elements());
      engine.copy_residual(i, residual);
      ledger.add(i, residual, 1.0);
    }
  });
  for (const Status& status : failures) EXPECT_TRUE(status.is_ok()) << status.message();
  // 15 steps of sums of a few units each, in single precision; all-reduce rounds sums of halves
  // once more, and nobody keeps what that loses.
  EXPECT_LT(ledger.worst(), std::string_view(GetParam()) == "fp16" ? 2e-2 : 2e-3);
}

INSTANTIATE_TEST_SUITE_P(Engine, EveryCodec,
                         testing::Values("fp16", "efsign", "topk:0.01", "randomk:0.1", "acpsgd:4",
                                         "powersgd:2", "dgc:0.01", "redsync:0.01"),
                         [](const auto& param) {
                           std::string name;
                           for (const char c : std::string(param.param)) {
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

TEST(Engine, RanksThatDisagreeAreToldBeforeTheFirstStep) {
  auto options = alike({.codec = "topk:0.01"});
  options[2].codec = "topk:0.02";
  const auto failures = on_every_rank(options, [](unsigned, Engine&) { FAIL(); });
  for (const Status& status : failures) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find("topk"), std::string::npos) << status.message();
  }
}

TEST(Engine, SaysWhenCompressionIsNotInEffect) {
  std::mutex mutex;
  std::vector<std::string> lines;
  EngineOptions options{.codec = "topk:0.01", .least_elements = 1'000'000};
  options.log = [&](std::string_view line) {
    const std::scoped_lock lock(mutex);
    lines.emplace_back(line);
  };
  const auto failures = on_every_rank(alike(options), [](unsigned, Engine&) {});
  for (const Status& status : failures) EXPECT_TRUE(status.is_ok()) << status.message();
  ASSERT_EQ(lines.size(), kWorkers);
  EXPECT_NE(lines.front().find("not in effect"), std::string::npos) << lines.front();
}

TEST(Engine, NanOnOneRankIsKnownToAllAndLeavesNoTrace) {
  const auto failures =
      on_every_rank(alike({.codec = "topk:0.05"}), [](unsigned rank, Engine& engine) {
        for (unsigned step = 0; step < 3; ++step) {
          Gradients gradients = gradients_of(rank, step);
          if (step == 1 && rank == 3) gradients[0][7] = std::numeric_limits<float>::infinity();
          for (std::size_t i = 0; i < gradients.size(); ++i) {
            ASSERT_TRUE(engine.ready(i, gradients[i]).is_ok());
          }
          const auto done = engine.wait();
          ASSERT_TRUE(done.has_value()) << done.error().message();
          EXPECT_EQ(done->finite, step != 1) << "rank " << rank;
          if (step == 2) {
            for (const float value : gradients[0]) ASSERT_TRUE(std::isfinite(value));
          }
        }
      });
  for (const Status& status : failures) EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST(Engine, WrongTensorsAreRefused) {
  auto world = comm::make_local_world({});
  EXPECT_EQ(Engine::make({}, tensors(), {}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Engine::make({.group = std::move(world->front())},
                         {{.name = "w", .shape = Shape{3}}, {.name = "w", .shape = Shape{4}}}, {})
                .error()
                .code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace gradpress
