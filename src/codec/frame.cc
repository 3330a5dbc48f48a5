#include "codec/frame.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "codec/wire.h"

namespace gradpress::codec {

namespace {

constexpr std::uint32_t kMagic = 0x31465047;  // "GPF1"
constexpr std::uint16_t kPoisonedFlag = 1;
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kFlagsAt = 4;
constexpr std::size_t kSiteAt = 6;
constexpr std::size_t kMessageAt = 8;
constexpr std::size_t kStepAt = 16;
constexpr std::size_t kChecksumAt = 24;
/// Areas begin at multiples of this, so that words in payloads are aligned in most codecs.
constexpr std::size_t kAlignment = 4;

std::uint64_t hash(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

template <class... Parts>
tl::unexpected<Status> corrupt(const FrameKey& key, const Parts&... parts) {
  return fail(Code::kCorruptPayload, "frame of rank ", key.sender, ", shard ", key.shard, ", step ",
              key.step, ": ", parts...);
}

}  // namespace

class FrameAccess {
 public:
  static std::size_t used(const FrameLayout& layout, std::size_t member,
                          std::span<const std::byte> frame) {
    const FrameLayout::Placed& area = layout.areas_[member];
    return area.size_at == 0 ? area.bound_bytes : load_word<std::uint32_t>(frame, area.size_at);
  }
  static void set_used(const FrameLayout& layout, std::size_t member, std::size_t used_bytes,
                       std::span<std::byte> frame) {
    const std::size_t at = layout.areas_[member].size_at;
    if (at != 0) store_word(frame, at, static_cast<std::uint32_t>(used_bytes));
  }
  /// Of header, sizes and the used part of every area. Requires: sizes within their bounds.
  static std::uint64_t checksum(const FrameLayout& layout, const FrameKey& key, bool poisoned,
                                std::span<const std::byte> frame) {
    const std::uint64_t place = std::uint64_t{key.sender} << 32 | key.shard;
    std::uint64_t sum = hash(frame.first(kChecksumAt), place);
    if (poisoned) return sum;
    sum = hash(
        frame.subspan(FrameLayout::kHeaderBytes, layout.sizes_end_ - FrameLayout::kHeaderBytes),
        sum);
    for (std::size_t member = 0; member < layout.members(); ++member) {
      sum = hash(frame.subspan(layout.offset(member), used(layout, member, frame)), sum);
    }
    return sum;
  }
};

FrameLayout::FrameLayout(std::span<const Area> areas, Wrapping wrapping)
    : sizes_end_(wrapping == Wrapping::kFramed ? kHeaderBytes : 0) {
  const std::size_t alignment = wrapping == Wrapping::kFramed ? kAlignment : 1;
  areas_.reserve(areas.size());
  for (const Area& area : areas) {
    areas_.push_back({.bound_bytes = area.bound_bytes, .size_at = area.fixed ? 0 : sizes_end_});
    if (!area.fixed) sizes_end_ += sizeof(std::uint32_t);
  }
  bytes_ = sizes_end_;
  for (Placed& area : areas_) {
    area.offset = bytes_;
    bytes_ += (area.bound_bytes + alignment - 1) / alignment * alignment;
  }
}

void set_used(const FrameLayout& layout, std::size_t member, std::size_t used_bytes,
              std::span<std::byte> frame) {
  FrameAccess::set_used(layout, member, used_bytes, frame);
}

void seal_frame(const FrameLayout& layout, const FrameKey& key, bool poisoned,
                std::span<std::byte> frame) {
  store_word(frame, kMagicAt, kMagic);
  store_word(frame, kFlagsAt, poisoned ? kPoisonedFlag : std::uint16_t{0});
  store_word(frame, kSiteAt, key.site);
  store_word(frame, kMessageAt, key.message);
  store_word(frame, kStepAt, key.step);
  store_word(frame, kChecksumAt, FrameAccess::checksum(layout, key, poisoned, frame));
}

Result<FrameState> open_frame(const FrameLayout& layout, const FrameKey& key,
                              std::span<const std::byte> frame) {
  if (frame.size() != layout.bytes()) {
    return corrupt(key, "wanted ", layout.bytes(), " B, got ", frame.size(), " B");
  }
  if (const auto magic = load_word<std::uint32_t>(frame, kMagicAt); magic != kMagic) {
    return corrupt(key, "begins with ", magic, ", wanted ", kMagic,
                   ": these bytes are no frame of this version");
  }
  if (load_word<std::uint64_t>(frame, kMessageAt) != key.message) {
    return corrupt(key, "belongs to another message: do all ranks run the same plan?");
  }
  if (const auto step = load_word<std::uint64_t>(frame, kStepAt); step != key.step) {
    return corrupt(key, "is of step ", step, ": ranks have lost step with each other");
  }
  if (const auto site = load_word<std::uint16_t>(frame, kSiteAt); site != key.site) {
    return corrupt(key, "is of encode ", site, " of its option, wanted ", key.site);
  }
  const auto flags = load_word<std::uint16_t>(frame, kFlagsAt);
  if (flags > kPoisonedFlag) return corrupt(key, "has flags ", flags, ", wanted 0 or 1");
  const bool poisoned = flags == kPoisonedFlag;
  for (std::size_t member = 0; member < layout.members() && !poisoned; ++member) {
    const std::size_t used = FrameAccess::used(layout, member, frame);
    if (used > layout.bound(member)) {
      return corrupt(key, "member ", member, " has ", used, " B, wanted at most ",
                     layout.bound(member), " B");
    }
  }
  if (FrameAccess::checksum(layout, key, poisoned, frame) !=
      load_word<std::uint64_t>(frame, kChecksumAt)) {
    return corrupt(key, "the checksum does not match: its bytes changed on their way");
  }
  return poisoned ? FrameState::kPoisoned : FrameState::kWhole;
}

std::span<const std::byte> payload_of(const FrameLayout& layout, std::size_t member,
                                      std::span<const std::byte> frame) {
  return frame.subspan(layout.offset(member), FrameAccess::used(layout, member, frame));
}

std::uint64_t hash_of(std::span<const std::byte> bytes) { return hash(bytes, 0); }

}  // namespace gradpress::codec
