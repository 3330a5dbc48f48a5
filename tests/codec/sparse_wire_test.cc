// Coded entries: how many bytes they take, and what happens to values that do not fit.
#include "codec/sparse_wire.h"

#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "codec/site.h"
#include "spec/facts.h"
#include "spec/sizes.h"
#include "support/group.h"

namespace gradpress::test {
namespace {

/// log2 of n over k, per entry: what no code of all sets can be below on average.
double least_index_bits(double n, double k) {
  const double nats = std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
  return nats / std::log(2.0) / k;
}

/// Bytes of one step's payload of independent elements.
double used_bytes(const std::string& text, std::uint64_t elements, std::uint64_t step,
                  std::uint64_t seed) {
  Group group({.codec = text, .shape = {elements}, .seed = seed});
  EXPECT_TRUE(group.step(gradients(elements, 1, step, seed), step).is_ok());
  return static_cast<double>(group.sent[0][0].size());
}

class CodedEntries : public ::testing::Test {
 protected:
  std::uint64_t seed_ = run_seed();
};

TEST_F(CodedEntries, IndicesTakeAtMostFivePercentMoreThanTheLeastThereIs) {
  constexpr std::uint64_t kElements = 1'000'000;
  for (const double ratio : {0.1, 0.01, 0.001}) {
    const std::string text = "topk:" + std::to_string(ratio) + ":index=rice";
    const double k = ratio * kElements;
    const double bits = (used_bytes(text, kElements, 0, seed_) - 4 - 4 * k) * 8 / k;
    const double least = least_index_bits(kElements, k);
    EXPECT_LE(bits, 1.05 * least) << text << ", seed " << seed_;
    EXPECT_GE(bits, 0.99 * least) << text << ": fewer than there can be, seed " << seed_;
    RecordProperty(text, std::to_string(bits) + " of " + std::to_string(least));
  }
}

TEST_F(CodedEntries, TheMeanOfAHundredStepsIsWithinThreePercentOfTheFormula) {
  constexpr std::uint64_t kElements = 20'000;
  for (const std::string text :
       {"topk:0.1:index=rice", "topk:0.01:index=rice:value=fp16", "topk:0.01:index=rice:value=2bit",
        "topk:0.3:index=rice:value=2bit", "topk:0.002:index=rice:value=bf16"}) {
    const auto spec = *codec::parse_spec(text);
    const double bound = static_cast<double>(codec::payload_bytes(spec, {kElements}));
    Group group({.codec = text, .shape = {kElements}, .seed = seed_});
    double sum = 0.0;
    for (std::uint64_t step = 0; step < 100; ++step) {
      ASSERT_TRUE(group.step(gradients(kElements, 1, step, seed_), step).is_ok());
      const auto used = static_cast<double>(group.sent[0][0].size());
      ASSERT_LE(used, bound) << text;
      sum += used;
    }
    const double expected = codec::expected_bytes(spec, {kElements});
    EXPECT_NEAR(sum / 100.0, expected, 0.03 * expected) << text << ", seed " << seed_;
    EXPECT_LE(expected, bound) << text;
  }
}

TEST_F(CodedEntries, AtOnePercentHalvesTake40AndTwoBits18PercentOfPlainBytesAtMost) {
  for (const std::uint64_t elements : {100'000ULL, 25'000'000ULL}) {
    const auto bytes = [&](const std::string& keys) {
      return static_cast<double>(
          codec::payload_bytes(*codec::parse_spec("topk:0.01" + keys), {elements}));
    };
    EXPECT_LE(bytes(":index=rice:value=fp16"), 0.40 * bytes(""));
    EXPECT_LE(bytes(":index=rice:value=2bit"), 0.18 * bytes(""));
  }
}

TEST_F(CodedEntries, OfTheLeastFavorableSetsStayWithinTheBound) {
  // All gaps a multiple of 2^bits, all entries at the end, all at the beginning.
  for (const std::string text : {"topk:0.01:index=rice", "topk:0.1:index=rice:value=2bit"}) {
    const auto spec = *codec::parse_spec(text);
    constexpr std::size_t kElements = 6400;
    const std::size_t kept = codec::kept_elements(spec, kElements);
    const std::size_t stride = std::size_t{1} << codec::rice_bits(spec, kElements);
    for (const int layout : {0, 1, 2}) {
      std::vector<float> grad(kElements, 0.0F);
      for (std::size_t j = 0; j < kept; ++j) {
        const std::size_t at = layout == 0   ? std::min(j * (stride + 1), kElements - kept + j)
                               : layout == 1 ? kElements - kept + j
                                             : j;
        grad[at] = static_cast<float>(j + 1);
      }
      Group group({.codec = text, .shape = {kElements}});
      ASSERT_TRUE(group.step({grad}, 0).is_ok());
      EXPECT_LE(group.sent[0][0].size(), codec::payload_bytes(spec, {kElements}));
      EXPECT_EQ(read_entries(spec, group.sent[0][0], kElements).size(), kept);
    }
  }
}

TEST_F(CodedEntries, WhatRoundingLosesStaysInTheResidual) {
  const std::vector<float> grad = {1.0F + 0x1p-12F, 100'000.0F, 0x1p-30F, 0.5F};
  struct Row {
    std::string text;
    std::vector<float> residual;
  };
  const std::vector<Row> table = {
      {"topk:1:value=fp16", {0x1p-12F, 34'496.0F, 0x1p-30F, 0.0F}},
      {"topk:1:value=bf16:index=rice", {0x1p-12F, 160.0F, 0.0F, 0.0F}},
      {"randomk:1:value=fp16", {0x1p-12F, 34'496.0F, 0x1p-30F, 0.0F}},
  };
  for (const Row& row : table) {
    Group group({.codec = row.text, .shape = {4}});
    ASSERT_TRUE(group.step({grad}, 0).is_ok());
    EXPECT_EQ(group.residual(0), row.residual) << row.text;
  }
}

TEST_F(CodedEntries, TwoBitsCarryTheMeansOfFourBins) {
  // Mean magnitude 4: above it 9 and −8, below it 1 and 2, and −2 and −2.
  const std::vector<float> grad = {9.0F, 1.0F, -2.0F, 2.0F, -8.0F, -2.0F};
  for (const std::string text :
       {"topk:1:value=2bit", "topk:1:index=rice:value=2bit", "randomk:1:value=2bit"}) {
    Group group({.codec = text, .shape = {6}});
    ASSERT_TRUE(group.step({grad}, 0).is_ok());
    EXPECT_EQ(group.results[0], (std::vector<float>{9.0F, 1.5F, -2.0F, 1.5F, -8.0F, -2.0F}))
        << text;
    EXPECT_EQ(group.residual(0), (std::vector<float>{0.0F, -0.5F, 0.0F, 0.5F, 0.0F, 0.0F})) << text;
  }
}

}  // namespace
}  // namespace gradpress::test
