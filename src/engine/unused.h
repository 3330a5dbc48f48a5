// Which tensors no rank used in a step: ranks tell each other, beside the step's own messages.
#pragma once

#include <gradpress/group.h>
#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace gradpress::engine {

/// Every rank calls start() and finish() once per step.
/// Threads: one at a time. Cost: an all-gather of one bit per tensor; no allocation after the
/// first. Errors: the group's.
class UnusedAgreement {
 public:
  /// `group` is its own: all ranks.
  UnusedAgreement(std::unique_ptr<Group> group, std::size_t tensors);

  /// used[i] not 0: this rank has a gradient of tensor i. Requires: as many as there are tensors.
  Status start(std::span<const std::uint8_t> used);
  /// Waits. By tensor, the same on every rank: 1 if some rank used it, else 0.
  Result<std::span<const std::uint8_t>> finish();

 private:
  std::vector<std::byte> mine_;
  std::vector<std::byte> all_;
  std::vector<std::uint8_t> used_;
  Ticket ticket_ = 0;
  std::unique_ptr<Group> group_;  ///< last: after a failure it may write to the memory above
};

}  // namespace gradpress::engine
