#include "comm/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace gradpress::comm {
namespace {

struct Format {
  const char* name;
  float (*to_float)(std::uint16_t);
  std::uint16_t (*from_float)(float);
  std::uint16_t infinity;  ///< without sign
};

class Halves : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(
    Formats, Halves,
    ::testing::Values(Format{"float16", float16_to_float, float_to_float16, 0x7C00},
                      Format{"bfloat16", bfloat16_to_float, float_to_bfloat16, 0x7F80}),
    [](const auto& param) { return std::string(param.param.name); });

TEST_P(Halves, EveryValueSurvivesTheWayToFloatAndBack) {
  const Format& format = GetParam();
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = format.to_float(half);
    if ((half & 0x7FFFU) > format.infinity) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(format.to_float(format.from_float(value)))) << bits;
    } else {
      ASSERT_EQ(format.from_float(value), half) << bits;
    }
  }
}

TEST_P(Halves, EveryMidpointRoundsToTheEvenNeighbourAndItsSidesToTheNearer) {
  const Format& format = GetParam();
  for (std::uint32_t low = 0; low + 1 < format.infinity; ++low) {
    const double a = static_cast<double>(format.to_float(static_cast<std::uint16_t>(low)));
    const double b = static_cast<double>(format.to_float(static_cast<std::uint16_t>(low + 1)));
    const auto middle = static_cast<float>((a + b) / 2.0);
    ASSERT_EQ(static_cast<double>(middle), (a + b) / 2.0) << "the midpoint is no float";
    for (const std::uint32_t sign : {0U, 0x8000U}) {
      const float s = sign == 0 ? 1.0F : -1.0F;
      const std::uint32_t even = low + (low & 1U);
      const float below = std::nextafter(middle, 0.0F);
      const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
      ASSERT_EQ(format.from_float(s * middle), even | sign) << low;
      ASSERT_EQ(format.from_float(s * below), low | sign) << low;
      ASSERT_EQ(format.from_float(s * above), (low + 1) | sign) << low;
    }
  }
}

TEST_P(Halves, ValuesBeyondTheLargestBecomeInfinityFromTheMidpointOn) {
  const Format& format = GetParam();
  const auto largest = static_cast<std::uint16_t>(format.infinity - 1);
  const double a = static_cast<double>(format.to_float(largest));
  const double step =
      a - static_cast<double>(format.to_float(static_cast<std::uint16_t>(largest - 1)));
  const auto middle = static_cast<float>(a + step / 2.0);
  EXPECT_EQ(format.from_float(std::nextafter(middle, 0.0F)), largest);
  EXPECT_EQ(format.from_float(middle), format.infinity);
  EXPECT_EQ(format.from_float(-middle), format.infinity | 0x8000U);
  EXPECT_EQ(format.from_float(std::numeric_limits<float>::max()), format.infinity);
  EXPECT_EQ(format.from_float(std::numeric_limits<float>::infinity()), format.infinity);
  EXPECT_TRUE(std::isnan(format.to_float(format.from_float(std::bit_cast<float>(0x7F800001U)))));
}

TEST(Float16, KnownValuesHaveTheirBits) {
  EXPECT_EQ(float_to_float16(1.0F), 0x3C00);
  EXPECT_EQ(float_to_float16(-2.0F), 0xC000);
  EXPECT_EQ(float_to_float16(65504.0F), 0x7BFF);
  EXPECT_EQ(float_to_float16(0x1.0p-24F), 0x0001);
  EXPECT_EQ(float_to_float16(0x1.0p-25F), 0x0000);
  EXPECT_EQ(float_to_float16(-0.0F), 0x8000);
  EXPECT_EQ(float_to_bfloat16(1.0F), 0x3F80);
}

}  // namespace
}  // namespace gradpress::comm
