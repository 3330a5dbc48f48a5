// What every worker holds between the actions of an option: the one definition that senders,
// receivers and decoders share. See docs/options.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "comm/topology.h"
#include "plan/option.h"
#include "sync/partition.h"

namespace gradpress::sync {

/// Payloads of all members for one shard, made by one worker. (Payloads that a collective summed
/// keep the name of one of their makers.)
struct Block {
  std::uint32_t shard = 0;
  std::uint32_t sender = 0;  ///< rank in the world

  friend bool operator==(const Block&, const Block&) = default;
};

/// One worker's part at one point of the option.
struct Holding {
  bool idle = false;  ///< not the root: waits for the broadcast, holds nothing
  /// Shards of the point's partition. Raw data is one shard; idle workers have the numbers of the
  /// worker they wait for.
  std::uint32_t first = 0;
  std::uint32_t count = 1;
  /// The lowest rank that holds data of the same workers: of two ranks with equal shards and equal
  /// sources, both hold the same numbers.
  std::uint32_t source = 0;
  std::vector<Block> blocks = {};  ///< encoded data, in the order it lies in memory
};

/// One point of the option, alike for all workers.
struct Point {
  bool encoded = false;
  std::size_t partition = 0;
  unsigned site = 0;              ///< encoded: which encode made it
  unsigned round = 0;             ///< encoded: which round of that encode
  std::uint64_t covers = 1;       ///< how many workers' gradients the sum stands for
  bool replicated = false;        ///< every machine holds the same
  std::uint32_t made_shards = 1;  ///< encoded: shards that one worker's encode made
};

struct HoldingsInput {
  plan::Option option = {};
  comm::Topology topology = {};
  std::span<const std::uint64_t> elements = {};  ///< per member
  /// Low rank: the numbers in all members' payloads per round. They are cut as one vector; other
  /// codecs encode shard by shard, and this is empty.
  std::span<const std::uint64_t> vector_elements = {};
};

/// Points are numbered from 0, before the first action; point i is after action i − 1.
/// Cost: a rank's holding is computed when it is first asked for, from those of its peers.
class Holdings {
 public:
  /// Requires: the option is one of the (extended) tree.
  explicit Holdings(const HoldingsInput& input);

  std::size_t points() const { return points_.size(); }
  const Point& point(std::size_t index) const { return points_[index]; }
  const Partition& partition(std::size_t index) const {
    return partitions_[points_[index].partition];
  }
  const Holding& at(std::size_t index, unsigned rank);

  /// The group of a phase that `rank` is in, as ranks in the world.
  std::vector<unsigned> group(plan::Phase phase, unsigned rank) const;
  /// rank's number in that group.
  unsigned place(plan::Phase phase, unsigned rank) const;
  unsigned group_size(plan::Phase phase) const;

 private:
  void walk(const HoldingsInput& input);
  Point after_comp(const HoldingsInput& input, std::size_t action);
  Point after_comm(std::size_t action);
  std::size_t add(Partition partition);
  Holding compute(std::size_t index, unsigned rank);
  void move_raw(const plan::Action& action, unsigned rank, Holding& holding) const;
  void move_encoded(std::size_t index, unsigned rank, Holding& holding);

  plan::Option option_;
  comm::Topology topology_;
  bool as_vector_;
  std::vector<Partition> partitions_;
  std::vector<Point> points_;
  std::vector<std::vector<std::optional<Holding>>> known_;  ///< by point, then rank
};

}  // namespace gradpress::sync
