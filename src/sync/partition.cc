#include "sync/partition.h"

namespace gradpress::sync {

Partition::Partition(std::size_t members, std::uint32_t shards)
    : members_(members), shards_(shards), bounds_(members * (std::size_t{shards} + 1)) {}

Partition Partition::whole(std::span<const std::uint64_t> elements) {
  Partition all(elements.size(), 1);
  for (std::size_t member = 0; member < elements.size(); ++member) {
    all.bound(member, 1) = elements[member];
  }
  return all;
}

Partition Partition::split(std::uint32_t ways) const {
  Partition finer(members_, shards_ * ways);
  for (std::size_t member = 0; member < members_; ++member) {
    for (std::uint32_t shard = 0; shard < shards_; ++shard) {
      const ShardRange all = piece(member, shard);
      for (std::uint32_t part = 0; part < ways; ++part) {
        const ShardRange range = shard_range(all.count, ways, part);
        finer.bound(member, shard * ways + part) = all.begin + range.begin;
      }
    }
    const ShardRange last = piece(member, shards_ - 1);
    finer.bound(member, finer.shards_) = last.begin + last.count;
  }
  return finer;
}

Partition Partition::merged(std::uint32_t ways) const {
  Partition coarser(members_, shards_ / ways);
  for (std::size_t member = 0; member < members_; ++member) {
    for (std::uint32_t shard = 0; shard < coarser.shards_; ++shard) {
      coarser.bound(member, shard) = piece(member, shard * ways).begin;
    }
    const ShardRange last = piece(member, shards_ - 1);
    coarser.bound(member, coarser.shards_) = last.begin + last.count;
  }
  return coarser;
}

std::uint64_t Partition::elements(std::uint32_t shard) const {
  std::uint64_t sum = 0;
  for (std::size_t member = 0; member < members_; ++member) sum += piece(member, shard).count;
  return sum;
}

}  // namespace gradpress::sync
