// Frames: what stands around the payloads of one sender and one shard when they travel by
// themselves, so that a receiver knows that they are whole and meant for this message and step.
//
// A frame holds the payloads of all members of a message, each in an area of its own of fixed
// size. Its bytes are in docs/wire_format.md.
#pragma once

#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradpress::codec {

/// Where the payloads of one frame lie. Immutable; any number of threads.
class FrameLayout {
 public:
  static constexpr std::size_t kHeaderBytes = 32;

  /// One member's area.
  struct Area {
    std::size_t bound_bytes = 0;  ///< the most its payload takes
    bool fixed = true;            ///< it always takes exactly that; else its size is written down
  };
  /// Bare, the areas follow each other without header, sizes and gaps: payloads that collectives
  /// sum. Only payload_of() takes such a layout. Requires: bare areas are fixed.
  enum class Wrapping : std::uint8_t { kFramed, kBare };
  explicit FrameLayout(std::span<const Area> areas, Wrapping wrapping = Wrapping::kFramed);

  std::size_t members() const { return areas_.size(); }
  /// Of the whole frame: header, sizes, areas.
  std::size_t bytes() const { return bytes_; }
  std::size_t offset(std::size_t member) const { return areas_[member].offset; }
  std::size_t bound(std::size_t member) const { return areas_[member].bound_bytes; }

 private:
  friend class FrameAccess;
  struct Placed {
    std::size_t bound_bytes = 0;
    std::size_t offset = 0;
    std::size_t size_at = 0;  ///< where its size is written; 0 when that is fixed
  };

  std::vector<Placed> areas_;
  std::size_t sizes_end_ = 0;
  std::size_t bytes_ = 0;
};

/// What both sides know of a frame beside its payloads.
struct FrameKey {
  std::uint64_t message = 0;  ///< hash of the message's description
  std::uint64_t step = 0;
  std::uint32_t sender = 0;  ///< the encoder's rank in the world
  std::uint32_t shard = 0;   ///< its number among all workers' shards
  std::uint16_t site = 0;    ///< which encode of the option
};

/// Notes the size of a member's payload, which lies in its area already.
/// Requires: frame.size() == layout.bytes(), used_bytes <= bound, and == bound where that is fixed.
void set_used(const FrameLayout& layout, std::size_t member, std::size_t used_bytes,
              std::span<std::byte> frame);

/// Writes header and checksum. A poisoned frame tells that its sender met a gradient that is not
/// finite; its payloads mean nothing.
/// Requires: frame.size() == layout.bytes(); set_used was called for every member, if not poisoned.
void seal_frame(const FrameLayout& layout, const FrameKey& key, bool poisoned,
                std::span<std::byte> frame);

enum class FrameState : std::uint8_t { kWhole, kPoisoned };

/// Checks a frame that arrived. The bytes may be hostile: nothing outside them is read.
/// Cost:   one pass over the payloads.
/// Errors: kCorruptPayload on a wrong length, header, size or checksum, naming the sender.
Result<FrameState> open_frame(const FrameLayout& layout, const FrameKey& key,
                              std::span<const std::byte> frame);

/// A member's payload. Requires: open_frame was kWhole, or this process sealed the frame.
std::span<const std::byte> payload_of(const FrameLayout& layout, std::size_t member,
                                      std::span<const std::byte> frame);

/// The 64-bit hash that frames name messages by.
std::uint64_t hash_of(std::span<const std::byte> bytes);

}  // namespace gradpress::codec
