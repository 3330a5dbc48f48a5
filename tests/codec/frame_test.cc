#include "codec/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>

#include "support/group.h"

namespace gradpress::codec {
namespace {

const std::array<FrameLayout::Area, 3> kAreas = {
    {{.bound_bytes = 13}, {.bound_bytes = 24, .fixed = false}, {.bound_bytes = 0}}};
constexpr FrameKey kKey{.message = 77, .step = 5, .sender = 3, .shard = 2, .site = 1};

std::vector<std::byte> sealed(const FrameLayout& layout, bool poisoned = false) {
  std::vector<std::byte> frame(layout.bytes());
  for (std::size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<std::byte>(i);
  set_used(layout, 0, 13, frame);
  set_used(layout, 1, 16, frame);
  set_used(layout, 2, 0, frame);
  seal_frame(layout, kKey, poisoned, frame);
  return frame;
}

std::string opened(const FrameKey& key, std::span<const std::byte> frame) {
  const auto state = open_frame(FrameLayout(kAreas), key, frame);
  if (!state) {
    EXPECT_EQ(state.error().code(), Code::kCorruptPayload);
    return state.error().message();
  }
  return *state == FrameState::kPoisoned ? "poisoned" : "whole";
}

TEST(Frame, IsAsLongAsTheDocumentSays) {
  const FrameLayout layout(kAreas);
  EXPECT_EQ(layout.bytes(), 32U + 4 + 16 + 24);
  EXPECT_EQ(layout.offset(0), 36U);
  EXPECT_EQ(layout.offset(1), 52U);
  const std::array<FrameLayout::Area, 2> fixed = {{{.bound_bytes = 4}, {.bound_bytes = 8}}};
  EXPECT_EQ(FrameLayout(fixed).bytes(), 32U + 12);
  EXPECT_EQ(FrameLayout(fixed, FrameLayout::Wrapping::kBare).bytes(), 12U);
}

TEST(Frame, GivesBackWhatWasPutIn) {
  const FrameLayout layout(kAreas);
  const auto frame = sealed(layout);
  EXPECT_EQ(opened(kKey, frame), "whole");
  EXPECT_EQ(payload_of(layout, 0, frame).size(), 13U);
  EXPECT_EQ(payload_of(layout, 1, frame).size(), 16U);
  EXPECT_EQ(payload_of(layout, 1, frame)[0], std::byte{52});
  EXPECT_EQ(payload_of(layout, 2, frame).size(), 0U);
  EXPECT_EQ(opened(kKey, sealed(layout, true)), "poisoned");
}

TEST(Frame, OfAnotherPlaceIsRefusedWithTheReason) {
  const auto frame = sealed(FrameLayout(kAreas));
  FrameKey key = kKey;
  key.message = 78;
  EXPECT_NE(opened(key, frame).find("another message"), std::string::npos);
  key = kKey;
  key.step = 6;
  EXPECT_NE(opened(key, frame).find("is of step 5"), std::string::npos);
  key = kKey;
  key.site = 0;
  EXPECT_NE(opened(key, frame).find("is of encode 1"), std::string::npos);
  key = kKey;
  key.sender = 2;
  EXPECT_NE(opened(key, frame).find("checksum"), std::string::npos);
  key = kKey;
  key.shard = 3;
  EXPECT_NE(opened(key, frame).find("frame of rank 3, shard 3"), std::string::npos);
  EXPECT_NE(opened(kKey, std::span(frame).first(40)).find("got 40 B"), std::string::npos);
}

TEST(Frame, EveryFlippedBitOfWhatCountsIsFound) {
  const FrameLayout layout(kAreas);
  const auto frame = sealed(layout);
  for (std::size_t at = 0; at < frame.size(); ++at) {
    // Padding after the first area, and what the second does not use.
    const bool counts = at < 36 + 13 || (at >= 52 && at < 52 + 16);
    for (int bit = 0; bit < 8; ++bit) {
      auto wrong = frame;
      wrong[at] ^= static_cast<std::byte>(1U << bit);
      EXPECT_EQ(opened(kKey, wrong) == "whole", !counts) << "byte " << at << " bit " << bit;
    }
  }
}

TEST(Frame, HostileBytesAreRefusedWithoutAReadOutside) {
  const FrameLayout layout(kAreas);
  std::mt19937_64 random(test::run_seed());
  for (int turn = 0; turn < 20000; ++turn) {
    auto frame = sealed(layout, turn % 7 == 0);
    const std::size_t changes = 1 + random() % 8;
    for (std::size_t i = 0; i < changes; ++i) {
      frame[random() % (turn % 2 == 0 ? 36 : frame.size())] = static_cast<std::byte>(random());
    }
    frame.resize(random() % 5 == 0 ? random() % (2 * frame.size()) : frame.size());
    frame.shrink_to_fit();
    (void)opened(kKey, frame);
  }
}

}  // namespace
}  // namespace gradpress::codec
