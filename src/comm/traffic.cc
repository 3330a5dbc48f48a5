#include "comm/traffic.h"

#include <gradpress/shape.h>

#include <bit>
#include <numeric>

namespace gradpress::comm {

namespace {

class Tally {
 public:
  Tally(const CallSize& call, unsigned rank, std::span<const unsigned> world_ranks,
        const Topology& topology)
      : call_(call), rank_(rank), world_ranks_(world_ranks), topology_(topology) {}

  SentBytes count() {
    if (size() == 1) return {};
    const bool halves = size_of(call_.type) == 2;
    switch (call_.kind) {
      case CollectiveKind::kAllReduce:
        if (halves) {
          to_owners();
          to(next(1), total() - piece(next(1)));
        } else {
          to(next(1), 2 * total() - piece(next(1)) - piece(next(2)));
        }
        break;
      case CollectiveKind::kReduceScatter:
        if (halves) {
          to_owners();
        } else {
          to(next(1), total() - piece(rank_));
        }
        break;
      case CollectiveKind::kAllGather:
        to(next(1), total() - piece(next(1)));
        break;
      case CollectiveKind::kAllToAll:
        to_owners();
        break;
      case CollectiveKind::kGather:
        if (rank_ != 0) to(0, piece(rank_));
        break;
      case CollectiveKind::kReduce:
        if (halves) {
          to_owners();
          if (rank_ != 0) to(0, piece(rank_));
        } else if (rank_ != 0) {
          to(rank_ & (rank_ - 1), call_.bytes);
        }
        break;
      case CollectiveKind::kBroadcast:
        to_children();
        break;
      case CollectiveKind::kBarrier:
        break;
    }
    return sent_;
  }

 private:
  unsigned size() const { return static_cast<unsigned>(world_ranks_.size()); }
  unsigned next(unsigned distance) const { return (rank_ + distance) % size(); }
  /// Buffers without pieces of their own are cut like a tensor.
  std::size_t piece(unsigned rank) const {
    if (!call_.piece_bytes.empty()) return call_.piece_bytes[rank];
    const std::size_t unit = size_of(call_.type);
    return static_cast<std::size_t>(shard_range(call_.bytes / unit, size(), rank).count) * unit;
  }
  std::size_t total() const {
    if (call_.piece_bytes.empty()) return call_.bytes;
    return std::accumulate(call_.piece_bytes.begin(), call_.piece_bytes.end(), std::size_t{0});
  }

  void to(unsigned rank, std::size_t bytes) {
    const bool near = topology_.same_machine(world_ranks_[rank_], world_ranks_[rank]);
    (near ? sent_.intra : sent_.inter) += bytes;
  }
  void to_owners() {
    for (unsigned step = 1; step < size(); ++step) to(next(step), piece(next(step)));
  }
  void to_children() {
    const unsigned bits = rank_ == 0 ? static_cast<unsigned>(std::bit_width(size() - 1))
                                     : static_cast<unsigned>(std::countr_zero(rank_));
    for (unsigned bit = 0; bit < bits; ++bit) {
      if (rank_ + (1U << bit) < size()) to(rank_ + (1U << bit), call_.bytes);
    }
  }

  const CallSize& call_;
  unsigned rank_;
  std::span<const unsigned> world_ranks_;
  const Topology& topology_;
  SentBytes sent_;
};

}  // namespace

SentBytes sent_in(const CallSize& call, unsigned rank, std::span<const unsigned> world_ranks,
                  const Topology& topology) {
  return Tally(call, rank, world_ranks, topology).count();
}

}  // namespace gradpress::comm
