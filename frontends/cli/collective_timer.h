// Times collectives of workers that are threads of this process, or processes of which this is one.
#pragma once

#include <gradpress/group.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "codec_timer.h"
#include "comm/local/link.h"
#include "comm/topology.h"

namespace gradpress::cli {

struct CollectiveCost {
  std::size_t count = 0;  ///< elements that one worker holds going in
  /// From the last worker's start to the last one's end; of processes, whose clocks may differ, the
  /// slowest one's own time since a barrier.
  Spread us = {};
  std::uint64_t wrong = 0;       ///< elements that were not what they should be
  std::uint64_t wire_bytes = 0;  ///< most that one worker sent in one call
};

/// The ends of a world that live in this process, on float32 or two-byte floats: all of them, then
/// each on a thread of its own; or one, then the others do the same in theirs.
class CollectiveTimer {
 public:
  explicit CollectiveTimer(std::vector<std::unique_ptr<Group>> ends)
      : kept_(2 * ends.size()), ends_(std::move(ends)) {}

  /// Verifies one call on numbers whose sums are exact, then times.
  /// `bytes` is what one worker holds going in (broadcast: what the root sends).
  /// Errors: the group's; kInternal when the answer is wrong: then nothing was timed.
  Result<CollectiveCost> cost(CollectiveKind kind, DataType type, std::size_t bytes,
                              const Turns& turns);

  /// What every rank has sent until now. Errors: the group's.
  Result<std::vector<SentBytes>> sent_by_rank();

 private:
  Result<CollectiveCost> cost_among_threads(CollectiveKind kind, DataType type, std::size_t bytes,
                                            const Turns& turns);
  Result<CollectiveCost> cost_among_processes(CollectiveKind kind, DataType type, std::size_t bytes,
                                              const Turns& turns);
  bool has_all_ends() const { return ends_.size() == ends_.front()->size(); }

  /// Buffers of calls that failed, two for each end: they are their group's until it is destroyed.
  std::vector<std::vector<std::byte>> kept_;
  std::vector<std::unique_ptr<Group>> ends_;
};

/// What the links alone ask for, in microseconds, by the flat formulas of the cost model.
struct CollectiveBound {
  double bandwidth_us = 0.0;  ///< bytes over rate; 0 where the link has no limit
  double latency_us = 0.0;
};
CollectiveBound collective_bound(CollectiveKind kind, const comm::Topology& topology,
                                 const comm::Link& link, std::size_t bytes);

/// nccl-tests' factor from algorithm to bus bandwidth.
double bus_factor(CollectiveKind kind, unsigned workers);

}  // namespace gradpress::cli
