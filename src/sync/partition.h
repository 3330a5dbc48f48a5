// How the tensors of a message are cut: each of its own, into the same number of shards.
#pragma once

#include <gradpress/shape.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace gradpress::sync {

/// Consecutive shards of several flat tensors; shards may be empty. A value.
class Partition {
 public:
  /// One shard: every tensor whole.
  static Partition whole(std::span<const std::uint64_t> elements);

  /// Every shard cut by shard_range into `ways`: shard s becomes s·ways … s·ways + ways − 1.
  Partition split(std::uint32_t ways) const;
  /// Every `ways` neighbours made one. Requires: ways divides shards().
  Partition merged(std::uint32_t ways) const;

  std::size_t members() const { return members_; }
  std::uint32_t shards() const { return shards_; }
  ShardRange piece(std::size_t member, std::uint32_t shard) const {
    const std::uint64_t* at = bounds_.data() + member * (std::size_t{shards_} + 1) + shard;
    return {.begin = at[0], .count = at[1] - at[0]};
  }
  /// Of all members together.
  std::uint64_t elements(std::uint32_t shard) const;

 private:
  Partition(std::size_t members, std::uint32_t shards);
  std::uint64_t& bound(std::size_t member, std::uint32_t shard) {
    return bounds_[member * (std::size_t{shards_} + 1) + shard];
  }

  std::size_t members_;
  std::uint32_t shards_;
  std::vector<std::uint64_t> bounds_;  ///< per member: shards_ + 1
};

}  // namespace gradpress::sync
