#include "engine/element_type.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "comm/half.h"

namespace gradpress::engine {
namespace {

/// Every pattern of two bytes, from a begin that is not aligned to a vector.
std::vector<std::uint16_t> every_half() {
  std::vector<std::uint16_t> halves;
  for (unsigned bits = 0; bits <= 0xFFFF; ++bits)
    halves.push_back(static_cast<std::uint16_t>(bits));
  return halves;
}

const std::byte* bytes_of(const std::vector<std::uint16_t>& halves) {
  return reinterpret_cast<const std::byte*>(halves.data());
}

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

TEST(ElementType, EveryHalfSurvivesTheWayInAndOut) {
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBfloat16}) {
    const auto one =
        type == ElementType::kFloat16 ? comm::float16_to_float : comm::bfloat16_to_float;
    const auto halves = every_half();
    std::vector<float> floats(halves.size());
    to_floats(bytes_of(halves), type, floats);
    std::vector<std::uint16_t> again(halves.size());
    from_floats(floats, type, reinterpret_cast<std::byte*>(again.data()));
    for (std::size_t i = 0; i < halves.size(); ++i) {
      ASSERT_TRUE(same(floats[i], one(halves[i]))) << i;
      ASSERT_TRUE(same(one(again[i]), one(halves[i]))) << i;
    }
  }
}

TEST(ElementType, FiniteValuesTakeTheKernelAndGiveTheSame) {
  // No element of this is out of range: the kernels convert it, -0 and subnormals included.
  for (const ElementType type : {ElementType::kFloat16, ElementType::kBfloat16}) {
    const auto one =
        type == ElementType::kFloat16 ? comm::float16_to_float : comm::bfloat16_to_float;
    std::vector<std::uint16_t> halves;
    for (const std::uint16_t half : every_half()) {
      if (std::isfinite(one(half)) && std::abs(one(half)) < 1e30F) halves.push_back(half);
    }
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{17}, halves.size()}) {
      std::vector<float> floats(count);
      to_floats(bytes_of(halves), type, floats);
      std::vector<std::uint16_t> again(count);
      from_floats(floats, type, reinterpret_cast<std::byte*>(again.data()));
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(same(floats[i], one(halves[i]))) << i;
        ASSERT_EQ(again[i], halves[i]) << i;
      }
    }
  }
}

TEST(ElementType, WhatIsOutOfRangeBecomesInfinity) {
  const std::vector<float> large = {65519.0F, 65520.0F, -1e9F, std::numeric_limits<float>::max()};
  std::vector<std::uint16_t> halves(large.size());
  from_floats(large, ElementType::kFloat16, reinterpret_cast<std::byte*>(halves.data()));
  EXPECT_EQ(halves, (std::vector<std::uint16_t>{0x7BFF, 0x7C00, 0xFC00, 0x7C00}));
  from_floats(large, ElementType::kBfloat16, reinterpret_cast<std::byte*>(halves.data()));
  EXPECT_EQ(halves[3], 0x7F80) << "the largest float rounds up";

  const std::vector<double> doubles = {1.5, 1e300, -1e300, std::nan("")};
  std::vector<float> floats(doubles.size());
  to_floats(reinterpret_cast<const std::byte*>(doubles.data()), ElementType::kFloat64, floats);
  EXPECT_EQ(floats[0], 1.5F);
  EXPECT_EQ(floats[1], std::numeric_limits<float>::infinity());
  EXPECT_EQ(floats[2], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(floats[3]));
}

}  // namespace
}  // namespace gradpress::engine
