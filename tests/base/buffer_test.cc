#include "base/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace gradpress {
namespace {

TEST(Buffer, IsAlignedAndZeroAtEverySize) {
  for (const std::size_t count : {1U, 2U, 15U, 16U, 17U, 1000U, 65537U}) {
    Buffer<float> buffer(count);
    EXPECT_EQ(buffer.size(), count);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0U);
    EXPECT_TRUE(
        std::all_of(buffer.span().begin(), buffer.span().end(), [](float v) { return v == 0.0F; }));
    buffer[count - 1] = 2.5F;
    EXPECT_EQ(std::as_const(buffer)[count - 1], 2.5F);
  }
}

TEST(Buffer, OfFourMebibytesStartsOnAHugePage) {
  const Buffer<float> large(1U << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.data()) % (2U << 20), 0U);
  EXPECT_EQ(large[(1U << 20) - 1], 0.0F);
}

TEST(Buffer, OfNothingAllocatesNothing) {
  const Buffer<double> none(0);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.span().empty());
  EXPECT_TRUE(Buffer<int>().empty());
}

TEST(Buffer, MovesLeaveTheSourceEmptyOrSwapped) {
  Buffer<int> a(3);
  a[2] = 7;
  const int* const memory = a.data();
  Buffer<int> b(std::move(a));
  EXPECT_EQ(b.data(), memory);
  EXPECT_EQ(b[2], 7);
  Buffer<int> c(5);
  c = std::move(b);
  EXPECT_EQ(c.size(), 3U);
  EXPECT_EQ(c.data(), memory);
}

}  // namespace
}  // namespace gradpress
