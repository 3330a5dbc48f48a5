// Counts every allocation of the process, and wants none in a step.
#include <gtest/gtest.h>

#include <algorithm>

#include "contract/allocation_counter.h"
#include "contract/every_codec.h"

namespace gradpress::test {
namespace {

class CodecAllocation : public EveryCodec {};
GRADPRESS_FOR_EVERY_CODEC(CodecAllocation);

TEST(AllocationCounter, SeesBothKindsOfAllocation) {
  const std::size_t before = allocations();
  const std::vector<int> vector(10);
  const auto codec = make_codec("none");
  const auto state = (*codec)->make_state({.shape = {100}, .feedback = true});
  EXPECT_GE(allocations(), before + 3);
}

TEST_P(CodecAllocation, NothingIsAllocatedInAStepAfterTheFirst) {
  const auto codec = *make_codec(text());
  const Traits& traits = codec->traits();
  for (const Shape& shape : {Shape{5000}, Shape{60, 50}}) {
    const std::uint32_t shards = traits.shardable ? 3 : 1;
    const auto state = *codec->make_state({.shape = shape});
    const std::size_t n = shape.elements();
    std::vector<std::byte> out(codec->encode_bound(shape, shards) + codec->encode_bound(shape));
    std::vector<std::byte> reduced(out.size());
    std::vector<std::size_t> sizes(shards);
    std::vector<float> dst(n);
    std::vector<std::vector<float>> grads;
    for (std::uint64_t step = 0; step < 6; ++step) {
      grads.push_back(gradients(n, 1, step, seed_).front());
    }
    for (std::uint64_t step = 0; step < 6; ++step) {
      const std::size_t before = allocations();
      std::size_t written = 0;
      for (unsigned round = 0; round < traits.rounds; ++round) {
        std::copy_n(out.begin(), written, reduced.begin());
        const auto result = codec->encode(*state,
                                          {.grad = grads[step],
                                           .shards = shards,
                                           .step = step,
                                           .round = round,
                                           .reduced = std::span(reduced).first(written)},
                                          out, sizes);
        ASSERT_TRUE(result.has_value());
        written = *result;
      }
      std::size_t at = 0;
      bool decoded = true;
      for (std::uint32_t s = 0; s < shards; ++s) {
        const ShardRange range = shard_range(n, shards, s);
        decoded =
            decoded &&
            codec
                ->decode(
                    *state,
                    {.payload = std::span(out).subspan(at, sizes[s]), .shard = s, .step = step},
                    std::span(dst).subspan(range.begin, range.count))
                .is_ok();
        at += sizes[s];
      }
      const bool finished = codec->finish(*state, 1, dst).is_ok();
      const std::size_t after = allocations();
      EXPECT_TRUE(decoded && finished);
      if (step > 0) {
        EXPECT_EQ(after, before) << shape.to_string() << ", step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace gradpress::test
