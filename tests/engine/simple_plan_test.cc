#include "engine/simple_plan.h"

#include <gtest/gtest.h>

namespace gradpress::engine {
namespace {

constexpr std::uint64_t kElements = 123'000;

/// What one tensor travels by when the user names a codec.
std::string codec_used(std::string_view codec, unsigned workers, bool sum_payloads = true) {
  const std::vector<TensorSpec> tensors{{.name = "w", .shape = Shape::flat(kElements)}};
  const auto messages = simple_plan(tensors, codec, {.machines = workers, .workers_per_machine = 1},
                                    {.sum_payloads = sum_payloads});
  EXPECT_TRUE(messages.has_value()) << messages.error().message();
  return messages ? messages->front().members.front().codec : "";
}

TEST(SimplePlan, SparsifiersGiveWayToTheSumWhereGatheringSendsMore) {
  // 16 workers: a rank would send 15 payloads of 98 kB, and of the raw 492 kB not twice as much.
  EXPECT_EQ(codec_used("redsync:0.1", 16), "none");
  EXPECT_EQ(codec_used("topk:0.1", 16), "none");
  EXPECT_EQ(codec_used("dgc:0.1", 16), "none");
  EXPECT_EQ(codec_used("redsync:0.01", 16), "redsync:0.01");
  EXPECT_EQ(codec_used("topk:0.1", 4), "topk:0.1");
  // The last number of workers at which it pays: 8 · 0.1 · W < 8.
  EXPECT_EQ(codec_used("topk:0.1", 9), "topk:0.1");
  EXPECT_EQ(codec_used("topk:0.1", 10), "none");
}

TEST(SimplePlan, WhatIsSummedOrExchangedPaysAtAnyNumberOfWorkers) {
  EXPECT_EQ(codec_used("randomk:0.1", 64), "randomk:0.1");
  EXPECT_EQ(codec_used("efsign", 64), "efsign");
  EXPECT_EQ(codec_used("fp16", 64), "fp16");
  EXPECT_EQ(codec_used("randomk:0.1", 64, /*sum_payloads=*/false), "none");
}

}  // namespace
}  // namespace gradpress::engine
