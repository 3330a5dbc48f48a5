// A strategy that is being improved: the incumbent, trial moves against it, and what they cost.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/search/space.h"
#include "plan/simulator.h"

namespace gradpress::plan {

/// Threads: one at a time. Requires: the space outlives it.
class Walk {
 public:
  explicit Walk(SearchSpace& space);

  struct Move {
    std::uint32_t message;
    std::uint16_t candidate;
  };

  /// Makes `picks` (a candidate per message) the incumbent, whatever it is worth.
  void restart(std::span<const std::uint16_t> picks);
  /// The value picks would have, or kNever when it is not below `limit`. The incumbent stays.
  double value_of(std::span<const std::uint16_t> picks, double limit);
  /// Takes the moves if they make the iteration shorter by more than rounding.
  bool improve(std::span<const Move> moves);
  /// The value after the moves, or kNever when not below `limit`; nothing is taken.
  double value_after(std::span<const Move> moves, double limit);
  void take(std::span<const Move> moves);

  /// Backward's start to the last task's end.
  double value_us() const { return value_; }
  std::span<const std::uint16_t> picks() const { return picks_; }
  const Loads& loads() const { return loads_; }
  std::uint64_t tasks_run() const { return simulator_.tasks_run(); }
  double backward_us() const { return simulator_.backward_us(); }
  SearchSpace& space() { return space_; }
  /// The incumbent's spans, in the order in which they end; codec work is kComm here.
  std::span<const Span> spans() const { return simulator_.spans(); }
  /// What the incumbent is, as a strategy.
  Strategy strategy() const;

 private:
  void set(std::uint32_t message, std::uint16_t candidate);
  Work work() const;
  /// Whether the lanes' loads alone rule out an end below `limit`.
  bool hopeless(double limit) const;

  SearchSpace& space_;
  Simulator simulator_;
  std::vector<std::uint16_t> picks_;
  std::vector<const Chain*> chains_;
  std::vector<Lead> leads_;  ///< empty without buckets
  Loads loads_{};
  double value_ = Simulator::kNever;
  std::vector<Move> undo_;
};

}  // namespace gradpress::plan
