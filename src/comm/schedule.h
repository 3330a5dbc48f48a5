// The collectives as schedules of point-to-point messages, written once for every transport.
//
// With p ranks and b bytes per rank, per rank:
//   all-reduce        ring, 2(p−1) steps, 2(p−1)/p · b sent
//   reduce-scatter,   ring, p−1 steps, all pieces but one sent
//   all-gather
//   all-to-all        pairwise, p−1 peers         gather       straight into the root
//   reduce, broadcast binomial tree, ⌈log2 p⌉     barrier      dissemination, ⌈log2 p⌉ empty rounds
// Two-byte floats that are summed travel as shards to the rank that sums them, all-to-all, and the
// sums by a ring (all-reduce) or straight to the root (reduce): as many bytes as the ring sends.
#pragma once

#include <gradpress/group.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ring_queue.h"
#include "comm/transport.h"

namespace gradpress::comm {

/// Memory that schedules keep from call to call, so that it is allocated once.
struct Scratch {
  std::vector<std::byte> slots;
  std::vector<std::byte> shard;
  std::vector<float> sums;
  std::vector<std::size_t> offsets;
  std::vector<std::size_t> receive_offsets;
  std::vector<std::uint64_t> marks;
  RingQueue<unsigned> sends;
};

/// Runs one collective to its end on the calling thread.
/// Requires: check_collective was ok; scratch is used by no other transport's call.
/// Errors:   the transport's, with the collective, its stage and the tensor in front.
Status run_schedule(Transport& transport, const Collective& call, std::chrono::milliseconds timeout,
                    Scratch& scratch);

}  // namespace gradpress::comm
