// How many bytes one rank sends in a collective, by the schedules of schedule.h: what a plan can
// promise before anything was sent.
#pragma once

#include <gradpress/data_type.h>
#include <gradpress/group.h>

#include <cstddef>
#include <span>

#include "comm/topology.h"

namespace gradpress::comm {

/// The part of a call that decides who sends what.
struct CallSize {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType type = DataType::kBytes;
  /// Bytes per rank of the group: what each contributes (all-gather, gather) or receives (reduce-
  /// scatter), or what this rank sends to each (all-to-all).
  std::span<const std::size_t> piece_bytes = {};
  /// All-reduce, reduce, broadcast: the bytes of a rank's buffer.
  std::size_t bytes = 0;
};

/// Sent by rank `rank` of a group whose ranks are `world_ranks` in the world; the root is rank 0.
SentBytes sent_in(const CallSize& call, unsigned rank, std::span<const unsigned> world_ranks,
                  const Topology& topology);

}  // namespace gradpress::comm
