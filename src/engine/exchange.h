// Small talk between ranks, between steps: numbers and texts that all must have alike.
#pragma once

#include <gradpress/group.h>
#include <gradpress/status.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace gradpress::engine {

/// All ranks call the same in the same order. Buffers are its own, because after a failure they
/// belong to the group: it must live as long as the group.
/// Threads: one at a time, and no other starts calls of the group meanwhile.
/// Errors:  the group's.
class Exchange {
 public:
  explicit Exchange(Group& world) : world_(world) {}

  /// The largest of all ranks' values: the same bits on every rank.
  Result<double> slowest(double mine);
  /// Replaces the values by their mean over the ranks: the same bits on every rank.
  Status to_mean(std::span<float> values);
  /// Rank 0's text.
  Result<std::string> from_first(const std::string& mine);
  Status barrier();

 private:
  Status broadcast(std::span<std::byte> bytes);

  Group& world_;
  std::vector<float> in_;
  std::vector<float> out_;
  std::string text_;
  std::uint64_t size_ = 0;
};

}  // namespace gradpress::engine
