// Whole runs with workers as threads: deterministic, resumable to the bit, with every technique.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>

#include "trainer.h"

namespace gradpress::trainer {
namespace {

namespace fs = std::filesystem;

const std::atomic<bool> kGoOn{false};

/// Seconds at most: a small model on synthetic images.
Settings small_run(const std::string& codec = "none") {
  Settings settings;
  settings.model = {.name = "mlp", .layers = 1, .hidden = 32};
  settings.data = {.source = "synthetic", .train_samples = 384, .test_samples = 120};
  settings.workers.workers = 3;
  settings.compression.codec = codec;
  settings.optimizer.lr = 0.02;
  settings.optimizer.weight_decay = 1e-4;
  settings.batch = 8;
  settings.steps = 12;
  return settings;
}

Record run(const Settings& settings) {
  auto record = train(settings, kGoOn);
  EXPECT_TRUE(record.has_value()) << record.error().to_string();
  return record ? *record : Record();
}

std::string told(const Settings& settings) {
  const auto record = train(settings, kGoOn);
  EXPECT_FALSE(record.has_value());
  return record ? "" : record.error().message();
}

class TrainRun : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "gradpress-train-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(TrainRun, LearnsAndRecordsIt) {
  Settings settings = small_run();
  settings.steps = 40;
  settings.eval_every = 10;
  const Record record = run(settings);
  EXPECT_EQ(record.steps, 40);
  EXPECT_EQ(record.metric, "accuracy");
  EXPECT_GT(record.metric_value.value(), 50.0);  // ten kinds: 10 by chance
  EXPECT_EQ(record.history.size(), 4U);
  EXPECT_LT(record.history.back().loss, record.history.front().loss);
  EXPECT_GT(record.wire_bytes_per_step, 0.0);
  EXPECT_GT(record.step_ms, 0.0);
}

TEST_F(TrainRun, TheSameSeedGivesTheSameBits) {
  for (const std::string codec : {"none", "acpsgd:4", "dgc:0.01"}) {
    const Record first = run(small_run(codec));
    EXPECT_EQ(run(small_run(codec)).fingerprint, first.fingerprint) << codec;
    Settings other = small_run(codec);
    other.seed = 2;
    EXPECT_NE(run(other).fingerprint, first.fingerprint) << codec;
  }
}

TEST_F(TrainRun, GoesOnFromACheckpointToTheSameBits) {
  for (const std::string codec : {"none", "acpsgd:4", "powersgd:2", "efsign", "dgc:0.01"}) {
    Settings whole = small_run(codec);
    whole.schedule.name = "cosine";
    if (codec == "dgc:0.01") whole.compression.dense_epochs = 0.5;  // ends at step 8
    Settings head = whole;
    head.save = (folder_ / codec).string();
    head.save_every = 8;
    head.time_to = 0.001;  // ends with the first evaluation
    head.eval_every = 8;
    EXPECT_EQ(run(head).steps, 8) << codec;
    Settings tail = whole;
    tail.resume = head.save;
    const Record resumed = run(tail);
    EXPECT_EQ(resumed.steps, 12) << codec;
    EXPECT_EQ(resumed.fingerprint, run(whole).fingerprint) << codec;
  }
}

TEST_F(TrainRun, AdamWAndBatchNormsGoOnToTheSameBits) {
  Settings whole = small_run("acpsgd:2");
  whole.model = {.name = "resnet20", .width = 8};
  whole.optimizer.name = "adamw";
  whole.optimizer.lr = 0.002;
  whole.workers.workers = 2;
  whole.batch = 2;
  whole.steps = 4;
  Settings head = whole;
  head.save = (folder_ / "adamw").string();
  head.time_to = 0.001;
  head.eval_every = 2;
  run(head);
  Settings tail = whole;
  tail.resume = head.save;
  EXPECT_EQ(run(tail).fingerprint, run(whole).fingerprint);
}

TEST_F(TrainRun, ACheckpointOfAnotherRunIsRefused) {
  Settings settings = small_run();
  settings.steps = 2;
  settings.save = (folder_ / "saved").string();
  run(settings);
  settings.resume = settings.save;
  settings.save.clear();
  settings.model.hidden = 16;
  EXPECT_NE(told(settings).find("hidden 16"), std::string::npos);
  settings.resume = (folder_ / "absent").string();
  EXPECT_NE(told(settings).find("absent"), std::string::npos);
}

TEST_F(TrainRun, AccumulatedBatchesAreOneLargeBatch) {
  Settings large = small_run();
  large.batch = 16;
  large.steps = 4;
  large.optimizer.momentum = 0.0;
  Settings parts = large;
  parts.batch = 8;
  parts.accumulate = 2;
  // The same samples in each step, in another order: equal but for rounding.
  EXPECT_NEAR(run(parts).history.back().loss, run(large).history.back().loss, 1e-3);
}

TEST_F(TrainRun, ASparsifiersTechniquesTrain) {
  Settings settings = small_run("redsync:0.01");
  settings.steps = 40;
  settings.compression.dense_epochs = 0.5;
  settings.compression.local_clip = 5.0;
  settings.compression.dense_output = true;
  settings.optimizer.nesterov = true;
  const Record record = run(settings);
  EXPECT_GT(record.metric_value.value(), 50.0);
  const Record dense = run(small_run());
  EXPECT_LT(record.wire_bytes_per_step, 0.5 * dense.wire_bytes_per_step);
}

TEST_F(TrainRun, ARecurrentModelTrainsWithTheClipBeforeSending) {
  const std::string text = (folder_ / "text.txt").string();
  std::string words;
  for (int i = 0; i < 300; ++i) words += "to be or not to be ";
  std::ofstream(text) << words;
  Settings settings = small_run("dgc:0.05");
  settings.data = {.source = "text:" + text, .sequence = 8};
  settings.model = {.name = "lstm-lm", .hidden = 32};
  settings.clip_before = 1.0;
  settings.compression.dense_output = true;
  settings.optimizer.lr = 0.5;
  settings.optimizer.momentum = 0.0;
  settings.steps = 30;
  const Record record = run(settings);
  EXPECT_EQ(record.metric, "perplexity");
  EXPECT_LT(record.metric_value.value(), 8.0);  // of eight different bytes
}

TEST_F(TrainRun, StopsWhenAskedAndKeepsWhatItHas) {
  const std::atomic<bool> stop{true};
  Settings settings = small_run();
  settings.log_every = 1000;  // not only where something is logged
  const auto record = train(settings, stop);
  ASSERT_TRUE(record.has_value());
  EXPECT_TRUE(record->interrupted);
  EXPECT_EQ(record->steps, 1);
  EXPECT_TRUE(record->metric_value.has_value());
}

TEST_F(TrainRun, DropoutRepeatsAndGoesOnToTheSameBits) {
  const std::string text = (folder_ / "text").string();
  std::ofstream(text) << []() {
    std::string words;
    for (int i = 0; i < 400; ++i) words += "abc dfg ";
    return words;
  }();
  for (const std::string model : {"lstm-lm", "transformer-lm"}) {
    Settings whole = small_run();
    whole.data = {.source = "text:" + text, .sequence = 8};
    whole.model = {.name = model, .hidden = 16, .dropout = 0.3};
    whole.accumulate = 2;
    whole.steps = 6;
    const Record record = run(whole);
    EXPECT_EQ(run(whole).fingerprint, record.fingerprint) << model;
    Settings without = whole;
    without.model.dropout = 0.0;
    EXPECT_NE(run(without).fingerprint, record.fingerprint) << model;
    Settings head = whole;
    head.save = (folder_ / model).string();
    head.time_to = 1e6;  // ends with the first evaluation
    head.eval_every = 4;
    EXPECT_EQ(run(head).steps, 4) << model;
    Settings tail = whole;
    tail.resume = head.save;
    EXPECT_EQ(run(tail).fingerprint, record.fingerprint) << model;
  }
}

TEST_F(TrainRun, WhatAutoRanIsAPlanThatRunsAgain) {
  Settings settings = small_run();
  settings.compression.plan = "auto";
  settings.compression.auto_codecs = {"efsign"};
  settings.write_plan = (folder_ / "plan.json").string();
  run(settings);
  Settings again = small_run();
  again.compression.plan = settings.write_plan;
  EXPECT_EQ(run(again).running, "plan");
}

TEST_F(TrainRun, SmallTensorsTravelRaw) {
  Settings settings = small_run("efsign");
  EXPECT_GT(run(settings).compressed_share, 0.9);
  settings.compression.least_elements = 1'000'000;
  EXPECT_EQ(run(settings).compressed_share, 0.0);
}

TEST_F(TrainRun, WrongSettingsAreToldBeforeAnythingRuns) {
  Settings settings = small_run();
  settings.batch = 1000;
  EXPECT_NE(told(settings).find("384"), std::string::npos);
  settings = small_run("dgc:0.01");
  settings.compression.plan = "auto";
  EXPECT_NE(told(settings).find("--plan auto"), std::string::npos);
  settings = small_run();
  settings.compression.auto_codecs = {"efsign"};
  EXPECT_NE(told(settings).find("--auto-codecs"), std::string::npos);
  settings = small_run();
  settings.model.dropout = 0.1;
  EXPECT_NE(told(settings).find("--dropout"), std::string::npos);
  settings = small_run("nonsense");
  EXPECT_NE(told(settings).find("nonsense"), std::string::npos);
  settings = small_run();
  settings.json = (folder_ / "no" / "run.json").string();
  EXPECT_NE(told(settings).find("no folder"), std::string::npos);
  settings = small_run();
  settings.workers.workers = 3;
  settings.workers.local_size = 2;
  EXPECT_NE(told(settings).find("machines of 2"), std::string::npos);
}

}  // namespace
}  // namespace gradpress::trainer
