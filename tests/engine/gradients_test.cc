// Recorded gradients: what the engine keeps, and a file that believes nothing.
#include "engine/gradients.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <sstream>

#include "codec/frame.h"
#include "engine/engine_workers.h"

namespace gradpress {
namespace {

RecordedGradients sample() {
  RecordedGradients gradients{.tensors = {{.name = "w", .shape = Shape{3, 2}},
                                          {.name = "scalar", .shape = Shape()},
                                          {.name = "", .shape = Shape{0}}},
                              .rank = 2,
                              .workers = 4};
  for (unsigned step = 0; step < 2; ++step) {
    const auto value = static_cast<float>(step + 1);
    gradients.steps.push_back({{value, -value, 0.0F, -0.0F, 1e-42F, 3e38F}, {value}, {}});
  }
  gradients.steps[1][1][0] = std::numeric_limits<float>::quiet_NaN();
  return gradients;
}

std::string bytes_of(const RecordedGradients& gradients) {
  std::ostringstream out;
  EXPECT_TRUE(engine::write_gradients(out, "sample", gradients).is_ok());
  return out.str();
}

Result<RecordedGradients> parsed(const std::string& bytes) {
  std::istringstream in(bytes);
  return engine::read_gradients(in, "sample");
}

void expect_same(const RecordedGradients& a, const RecordedGradients& b) {
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.workers, b.workers);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    EXPECT_EQ(a.tensors[i].name, b.tensors[i].name);
    EXPECT_EQ(a.tensors[i].shape, b.tensors[i].shape);
  }
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_TRUE(test::same_bits(a.steps[i], b.steps[i])) << "step " << i;
  }
}

TEST(GradientFile, IsReadAsItWasWritten) {
  const auto read = parsed(bytes_of(sample()));
  ASSERT_TRUE(read.has_value()) << read.error().message();
  expect_same(*read, sample());
  const auto file = std::filesystem::temp_directory_path() / "gradpress_gradients_test.bin";
  ASSERT_TRUE(write_gradients(file.string(), sample()).is_ok());
  const auto again = read_gradients(file.string());
  ASSERT_TRUE(again.has_value()) << again.error().message();
  expect_same(*again, sample());
  std::filesystem::remove(file);
}

TEST(GradientFile, WhatCannotBeWrittenOrReadIsAnError) {
  std::ostringstream out;
  EXPECT_EQ(engine::write_gradients(out, "x", {}).code(), Code::kInvalidArgument);
  RecordedGradients wrong = sample();
  wrong.steps[1][0].pop_back();
  EXPECT_EQ(engine::write_gradients(out, "x", wrong).code(), Code::kInvalidArgument);
  EXPECT_EQ(write_gradients("/nowhere/at/all", sample()).code(), Code::kInvalidArgument);
  EXPECT_EQ(read_gradients("/nowhere/at/all").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(read_gradients(std::filesystem::temp_directory_path().string()).error().code(),
            Code::kInvalidArgument);
}

TEST(GradientFile, EveryByteAndTheLengthAreChecked) {
  const std::string good = bytes_of(sample());
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(parsed(good.substr(0, length)).has_value()) << length;
  }
  EXPECT_FALSE(parsed(good + '\0').has_value());
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int flip : {1, 0x80, 0xFF}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      const auto read = parsed(bad);
      ASSERT_FALSE(read.has_value()) << "byte " << i;
      EXPECT_EQ(read.error().code(), Code::kInvalidArgument);
      EXPECT_TRUE(read.error().message().starts_with("sample: ")) << read.error().message();
    }
  }
}

/// A head and a table with a checksum that fits: the numbers themselves are the lie.
std::string forged(std::uint32_t steps, std::uint32_t tensors, const std::string& table,
                   const std::string& rest = {}) {
  const auto number = [](auto value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  std::string bytes("GPGRADS\0", 8);
  bytes += number(std::uint32_t{1}) + number(std::uint32_t{0}) + number(std::uint32_t{1});
  bytes += number(steps) + number(tensors) + number(static_cast<std::uint32_t>(table.size()));
  bytes += table;
  bytes += number(codec::hash_of(std::as_bytes(std::span<const char>(bytes))));
  return bytes + rest;
}

std::string entry(const std::string& name, const std::vector<std::uint64_t>& dims) {
  const auto number = [](std::uint64_t value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  std::string bytes = number(name.size()) + name + number(dims.size());
  for (const std::uint64_t extent : dims) bytes += number(extent);
  return bytes;
}

TEST(GradientFile, HostileNumbersBehindAGoodChecksumAreRefused) {
  constexpr std::uint64_t kHuge = std::numeric_limits<std::uint64_t>::max();
  constexpr std::uint32_t kMany = std::numeric_limits<std::uint32_t>::max();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {forged(1, 1, entry("w", {kHuge, kHuge})), "elements"},
      {forged(1, 1, entry("w", {kHuge})), "elements"},
      {forged(1, 1, entry("w", {1ULL << 31U})), "complete"},
      {forged(kMany, 1, entry("w", {1}), std::string(12, 'x')), "complete"},
      {forged(0, 1, entry("w", {1})), "no gradients"},
      {forged(1, 0, ""), "no gradients"},
      {forged(1, kMany, entry("w", {1})), "table"},
      {forged(1, 2, entry("w", {1}) + entry("w", {2})), "two tensors"},
      {forged(1, 1, entry("w", {1}) + "more"), "longer"},
      {forged(1, 1, std::string(8, '\xFF')), "table"},
      {forged(1, 1, entry("w", std::vector<std::uint64_t>(9, 1))), "dimensions"},
      {forged(1, 1, entry("w", {1}), std::string(12, 'x')), "checksum of w"}};
  for (const auto& [bytes, word] : cases) {
    const auto read = parsed(bytes);
    ASSERT_FALSE(read.has_value()) << word;
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument);
    EXPECT_NE(read.error().message().find(word), std::string::npos) << read.error().message();
  }
}

TEST(GradientFile, RandomBytesNeverCrashTheReader) {
  std::mt19937 random(7);
  for (unsigned turn = 0; turn < 2000; ++turn) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    EXPECT_FALSE(parsed(bytes).has_value());
    std::string table = bytes.substr(0, bytes.size() / 2);
    EXPECT_FALSE(parsed(forged(random() % 4, random() % 4, table, bytes)).has_value());
  }
}

TEST(EngineGradients, AreKeptAsGivenBeforeEncoding) {
  const auto failures = test::on_every_rank(
      test::alike({.codec = "topk:0.05", .allow_unused = true}), [](unsigned rank, Engine& engine) {
        engine.record_gradients(2);
        for (unsigned step = 0; step < 3; ++step) {
          test::EngineGradients given = test::gradients_of(rank, step);
          for (std::size_t i = 0; i < given.size(); ++i) {
            if (step == 1 && i == 3) continue;
            ASSERT_TRUE(engine.ready(i, given[i]).is_ok());
          }
          EXPECT_EQ(engine.recorded_gradients().steps.size(), step) << "the one under way";
          ASSERT_TRUE(engine.wait().has_value());
        }
        const RecordedGradients kept = engine.recorded_gradients();
        EXPECT_EQ(kept.rank, rank);
        EXPECT_EQ(kept.workers, test::kWorkers);
        ASSERT_EQ(kept.steps.size(), 2U);
        EXPECT_TRUE(test::same_bits(kept.steps[0], test::gradients_of(rank, 0)));
        test::EngineGradients second = test::gradients_of(rank, 1);
        std::ranges::fill(second[3], 0.0F);
        EXPECT_TRUE(test::same_bits(kept.steps[1], second));
        ASSERT_EQ(kept.tensors.size(), test::small_model().size());
        EXPECT_EQ(kept.tensors[2].name, "conv.weight");
      });
  test::expect_all_ok(failures);
}

}  // namespace
}  // namespace gradpress
