#include <gradpress/shape.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace gradpress {
namespace {

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

TEST(Shape, WithoutDimensionsIsOneElement) {
  const Shape scalar;
  EXPECT_EQ(scalar.elements(), 1U);
  EXPECT_FALSE(scalar.is_matrix());
  EXPECT_EQ(scalar.rows(), 1U);
  EXPECT_EQ(scalar.cols(), 1U);
  EXPECT_EQ(scalar.to_string(), "[]");
}

TEST(Shape, ViewsAKernelAsFirstExtentTimesTheRest) {
  const Shape kernel{64, 3, 7, 7};
  EXPECT_EQ(kernel.elements(), 64U * 147);
  EXPECT_TRUE(kernel.is_matrix());
  EXPECT_EQ(kernel.rows(), 64U);
  EXPECT_EQ(kernel.cols(), 147U);
  EXPECT_EQ(kernel.to_string(), "[64, 3, 7, 7]");
  const Shape vector{10};
  EXPECT_FALSE(vector.is_matrix());
  EXPECT_EQ(vector.rows(), 10U);
  EXPECT_EQ(vector.cols(), 1U);
  EXPECT_EQ(vector, Shape::flat(10));
  EXPECT_NE(vector, (Shape{10, 1}));
}

TEST(Shape, ProductsSaturateInsteadOfWrapping) {
  EXPECT_EQ((Shape{std::uint64_t{1} << 40, std::uint64_t{1} << 40}).elements(), kMost);
  EXPECT_EQ((Shape{kMost, 2, 0}).elements(), 0U) << "an empty tensor has no elements";
  EXPECT_EQ((Shape{3, kMost, 2}).cols(), kMost);
}

TEST(Shape, ExtentsBeyondTheEighthAreFoldedOrRefused) {
  const Shape folded{1, 2, 1, 2, 1, 2, 1, 2, 3, 5};
  EXPECT_EQ(folded.dims().size(), Shape::kMaxDims);
  EXPECT_EQ(folded.elements(), 16U * 15);
  const std::vector<std::uint64_t> nine(9, 2);
  const auto refused = Shape::from(nine);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.error().message().find('8'), std::string::npos);
  EXPECT_NE(refused.error().message().find('9'), std::string::npos);
  EXPECT_EQ(*Shape::from(std::span(nine).first(2)), (Shape{2, 2}));
}

TEST(ShardRange, CoversEveryElementExactlyOnce) {
  for (const std::uint64_t n : {0U, 1U, 2U, 5U, 6U, 7U, 31U, 33U, 1000U, 65537U}) {
    for (const std::uint32_t shards : {1U, 2U, 3U, 5U, 7U, 64U, 1000U}) {
      std::uint64_t next = 0;
      for (std::uint32_t s = 0; s < shards; ++s) {
        const ShardRange range = shard_range(n, shards, s);
        ASSERT_EQ(range.begin, next) << n << " elements, shard " << s << " of " << shards;
        ASSERT_LE(range.count, (n + shards - 1) / shards);
        next += range.count;
      }
      ASSERT_EQ(next, n) << shards << " shards";
    }
  }
}

TEST(ShardRange, HoldsForHugeTensorsAndManyShards) {
  for (const std::uint64_t n : {(std::uint64_t{1} << 31) + 5, std::uint64_t{3'000'000'000},
                                kMaxElements, std::uint64_t{1} << 60}) {
    for (const std::uint32_t shards : {7U, 1'000'003U, 4'294'967'295U}) {
      const ShardRange first = shard_range(n, shards, 0);
      EXPECT_EQ(first.begin, 0U);
      EXPECT_EQ(first.count, n / shards + (n % shards != 0 ? 1 : 0));
      const ShardRange last = shard_range(n, shards, shards - 1);
      EXPECT_EQ(last.begin + last.count, n);
      const ShardRange middle = shard_range(n, shards, shards / 2);
      const ShardRange after = shard_range(n, shards, shards / 2 + 1);
      EXPECT_EQ(middle.begin + middle.count, after.begin);
    }
  }
}

}  // namespace
}  // namespace gradpress
