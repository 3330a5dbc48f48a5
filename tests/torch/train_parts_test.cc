// The trainer's arithmetic: order of samples, schedules, optimizers, tables.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "compression.h"
#include "console.h"
#include "demo.h"
#include "optimizer.h"
#include "sampler.h"
#include "schedules.h"

namespace gradpress::trainer {
namespace {

TEST(TrainSampler, AnEpochGivesEverySampleToOneWorkerOnce) {
  std::multiset<std::int64_t> seen;
  for (unsigned rank = 0; rank < 3; ++rank) {
    Sampler sampler({.samples = 61, .batch = 2, .accumulate = 2, .workers = 3, .rank = rank});
    ASSERT_EQ(sampler.steps_per_epoch(), 5);
    for (std::int64_t step = 5; step < 10; ++step) {
      for (std::int64_t part = 0; part < 2; ++part) {
        const auto indices = sampler.indices(step, part);
        seen.insert(indices.begin(), indices.end());
      }
    }
  }
  EXPECT_EQ(seen.size(), 60U);
  EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), 60U);
}

TEST(TrainSampler, AnyStepCanComeFirst) {
  const SamplerOptions options{.samples = 40, .batch = 4, .workers = 2, .rank = 1, .seed = 5};
  Sampler in_order(options);
  for (std::int64_t step = 0; step < 12; ++step) {
    EXPECT_EQ(Sampler(options).indices(step, 0), in_order.indices(step, 0));
  }
  EXPECT_NE(in_order.indices(0, 0), in_order.indices(5, 0));
}

TEST(TrainSchedules, TheRateWarmsUpAndFalls) {
  const OptimizerSettings optimizer{.lr = 1.0};
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, {.warmup_steps = 4}, 0, 100), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, {.warmup_steps = 4}, 3, 100), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, {}, 99, 100), 1.0);
  const ScheduleSettings step{.name = "step", .decay_at = {0.5, 0.75}, .decay = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, step, 49, 100), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, step, 50, 100), 0.1);
  EXPECT_NEAR(learning_rate(optimizer, step, 75, 100), 0.01, 1e-12);
  EXPECT_NEAR(learning_rate(optimizer, {.name = "cosine"}, 50, 100), 0.5, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, {.name = "cosine", .floor = 0.1}, 99, 100), 0.1);
}

TEST(TrainSchedules, ASparsifierWarmsUpDenseThenFalling) {
  const auto schedule = CodecSchedule::make(
      {.codec = "dgc:0.001:sample=0.1", .dense_epochs = 0.5, .falling_epochs = 2}, 10);
  ASSERT_TRUE(schedule.has_value());
  EXPECT_EQ(schedule->codec_at(0), "none");
  EXPECT_EQ(schedule->codec_at(4), "none");
  EXPECT_EQ(schedule->codec_at(5), "dgc:0.1:sample=0.1");
  EXPECT_EQ(schedule->codec_at(15), "dgc:0.01:sample=0.1");
  EXPECT_EQ(schedule->codec_at(25), "dgc:0.001:sample=0.1");
  EXPECT_EQ(schedule->warm_steps(), 25);
  EXPECT_FALSE(CodecSchedule::make({.codec = "efsign", .falling_epochs = 1}, 10).has_value());
  EXPECT_FALSE(
      CodecSchedule::make({.codec = "chunktopk:4/64", .falling_epochs = 1}, 10).has_value());
}

TEST(TrainCompression, RedSyncDoesNotQuantiseTheOutputLayer) {
  const auto rules = [](const std::string& codec, bool dense_output) {
    Settings settings;
    settings.compression.codec = codec;
    settings.compression.dense_output = dense_output;
    std::string text;
    const auto chosen =
        choose_compression({.settings = settings, .codec = codec, .parameters = {}, .world = {}});
    for (const CodecRule& rule : chosen->options.engine.rules) {
      text += rule.pattern + " " + rule.codec + ";";
    }
    return text;
  };
  EXPECT_EQ(rules("redsync-q:0.01:reuse=3", false), "output.* redsync:0.01:reuse=3;");
  EXPECT_EQ(rules("redsync-q:0.01", true), "output.* none;");
  EXPECT_EQ(rules("redsync:0.01", false), "");
}

TEST(TrainSchedules, RatiosMayFallWithinPartsOfAnEpoch) {
  const auto schedule = CodecSchedule::make(
      {.codec = "dgc:0.001", .dense_epochs = 0.5, .falling_epochs = 0.5, .falling_stages = 2}, 40);
  ASSERT_TRUE(schedule.has_value());
  EXPECT_EQ(schedule->codec_at(19), "none");
  EXPECT_EQ(schedule->codec_at(20), "dgc:0.1");
  EXPECT_EQ(schedule->codec_at(29), "dgc:0.1");
  EXPECT_EQ(schedule->codec_at(30), "dgc:0.01");
  EXPECT_EQ(schedule->codec_at(40), "dgc:0.001");
  EXPECT_EQ(schedule->warm_steps(), 40);
  // More stages than steps: those that have none are left out, and the end stays where it was.
  const auto many =
      CodecSchedule::make({.codec = "dgc:0.001", .falling_epochs = 0.1, .falling_stages = 100}, 40);
  ASSERT_TRUE(many.has_value());
  EXPECT_EQ(many->warm_steps(), 4);
  EXPECT_NE(many->codec_at(0), many->codec_at(1));
}

/// Some steps on a parabola; returns where they end.
torch::Tensor descend(const OptimizerSettings& settings, bool engine_has_momentum) {
  auto x = torch::linspace(-1, 1, 12).view({3, 4}).clone().requires_grad_(true);
  auto optimizer = make_optimizer(settings, {{"x", x}}, engine_has_momentum);
  EXPECT_TRUE(optimizer.has_value());
  auto velocity = torch::zeros_like(x);
  for (int i = 0; i < 7; ++i) {
    x.mutable_grad() = (x.detach() - 0.3).clone();
    if (engine_has_momentum) {
      velocity = velocity * settings.momentum + x.grad();
      x.mutable_grad() = settings.nesterov ? x.grad() + velocity * settings.momentum : velocity;
    }
    (*optimizer)->step(settings.lr);
  }
  return x.detach();
}

template <class Reference, class Options>
torch::Tensor descend_by_torch(const Options& options) {
  auto x = torch::linspace(-1, 1, 12).view({3, 4}).clone().requires_grad_(true);
  Reference optimizer({x}, options);
  for (int i = 0; i < 7; ++i) {
    x.mutable_grad() = (x.detach() - 0.3).clone();
    optimizer.step();
  }
  return x.detach();
}

TEST(TrainOptimizer, IsTorchsSgd) {
  for (const bool nesterov : {false, true}) {
    const OptimizerSettings settings{
        .lr = 0.1, .momentum = 0.9, .nesterov = nesterov, .weight_decay = 0.01};
    const auto theirs = descend_by_torch<torch::optim::SGD>(
        torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(nesterov).weight_decay(0.01));
    EXPECT_TRUE(torch::allclose(descend(settings, false), theirs, 1e-5, 1e-6));
  }
}

TEST(TrainOptimizer, EndsAtTheSameWhereTheEngineHasTheMomentum) {
  for (const bool nesterov : {false, true}) {
    const OptimizerSettings settings{
        .lr = 0.1, .momentum = 0.9, .nesterov = nesterov, .weight_decay = 0.01};
    EXPECT_TRUE(torch::allclose(descend(settings, true), descend(settings, false), 1e-5, 1e-6));
  }
}

TEST(TrainOptimizer, IsTorchsAdamW) {
  const OptimizerSettings settings{.name = "adamw", .lr = 0.1, .weight_decay = 0.05};
  const auto theirs =
      descend_by_torch<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1).weight_decay(0.05));
  EXPECT_TRUE(torch::allclose(descend(settings, false), theirs, 1e-5, 1e-6));
}

TEST(TrainTable, ComparesTimesToWhatEveryRunReached) {
  Record slow{.step_ms = 100.0, .metric = "accuracy", .metric_value = 84.0, .best_value = 85.0};
  slow.history = {{.step = 1, .seconds = 10.0, .metric_value = 80.0},
                  {.step = 2, .seconds = 15.0},
                  {.step = 3, .seconds = 20.0, .metric_value = 85.0}};
  Record fast{.step_ms = 20.0, .metric = "accuracy", .metric_value = 86.0, .best_value = 86.0};
  fast.history = {{.step = 1, .seconds = 2.0, .metric_value = 84.9},
                  {.step = 2, .seconds = 4.0, .metric_value = 86.0}};
  const std::vector<NamedRecord> runs = {{"slow", slow}, {"fast", fast}};
  EXPECT_EQ(common_target(runs), 85.0);
  EXPECT_EQ(seconds_to(slow, 85.0), 20.0);
  EXPECT_EQ(seconds_to(fast, 85.0), 4.0);
  EXPECT_FALSE(seconds_to(slow, 85.1).has_value());
  const std::string table = comparison_table(runs);
  EXPECT_NE(table.find("5.00 x"), std::string::npos) << table;
  std::size_t longest = 0;
  for (std::size_t begin = 0; begin < table.size();) {
    const std::size_t end = table.find('\n', begin);
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  EXPECT_LE(longest, 100U);
  Record text{.metric = "perplexity", .best_value = 5.0};
  text.history = {{.seconds = 1.0, .metric_value = 7.0}, {.seconds = 3.0, .metric_value = 5.0}};
  EXPECT_EQ(seconds_to(text, 6.0), 3.0);
}

TEST(TrainConsole, ALineFitsATerminal) {
  const std::string text = progress_text({.step = 99999,
                                          .steps = 99999,
                                          .loss = 1.2345,
                                          .samples_per_s = 123456,
                                          .bytes_per_step = 123456789,
                                          .exposed_ms = 1234.5,
                                          .metric = "accuracy",
                                          .metric_value = 91.2,
                                          .has_metric = true});
  EXPECT_LE(text.size(), 100U) << text;
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1234567), "1.23 MB");
}

}  // namespace
}  // namespace gradpress::trainer
