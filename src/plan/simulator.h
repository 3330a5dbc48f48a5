// The timeline's event loop: four lanes, one task at a time each, as docs/cost_model.md defines.
//
// Built for a search that asks thousands of times: no allocation after construction, checkpoints
// along backward from which a changed strategy is resumed, and an early end for strategies that
// can no longer beat a limit.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "plan/cost.h"
#include "plan/span.h"
#include "plan/strategy.h"

namespace gradpress::plan {

/// A bucket member's own first Comp, which runs at that member's readiness. us = 0: none.
struct Lead {
  Lane lane = Lane::kDevice;
  double us = 0.0;
};

/// What one run needs to know. All are views; leads may be empty when no tensor has one.
struct Work {
  std::span<const Chain* const> chains;  ///< per message, without what the leads do
  std::span<const Lead> leads;           ///< per tensor
  Loads loads{};                         ///< sums over chains and leads, for the early end
};

/// Threads: one at a time.
class Simulator {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  Simulator(const Trace& trace, const Buckets& buckets);

  /// The end of the last task, from time 0 (forward not included); leaves checkpoints and spans.
  double run(const Work& work);
  /// The same for work that differs from the last run's only in messages whose members all are at
  /// or after `first`. kNever as soon as the end cannot be below `limit`. Leaves checkpoints alone.
  double probe(const Work& work, std::size_t first, double limit);
  /// Like run, but begins at the last checkpoint that `first` has not touched.
  double rerun(const Work& work, std::size_t first);
  /// What the last run or rerun did, in the order in which it ended. Codec work is kComm here: the
  /// option's action says what it is. Valid until the next run or rerun.
  std::span<const Span> spans() const { return spans_; }

  double backward_us() const { return backward_us_; }
  /// When a tensor's gradient is ready if nothing delays backward.
  std::span<const double> ready_us() const { return ready_us_; }
  /// Tasks run since construction, and what probes cost beside them: a measure of time spent that
  /// needs no clock.
  std::uint64_t tasks_run() const { return tasks_run_; }

 private:
  struct Entry {
    double runnable_us;
    std::uint32_t index;  ///< orders tasks that became runnable at one instant
    std::uint32_t id;     ///< message; tensor for leads and backward
    std::uint8_t position;
  };
  struct Queue {
    std::vector<Entry> entries;
    std::size_t head = 0;
    std::size_t tail = 0;
  };
  struct State {
    std::array<double, kLanes> start_us;
    std::array<double, kLanes> end_us;
    std::array<Entry, kLanes> running;
    std::array<double, kLanes> started_us;  ///< time already given to tasks
    std::uint32_t next_tensor = 0;          ///< whose backward has not ended
  };
  /// A State with what was queued then. Entries of all lanes stand one after the other.
  struct Checkpoint {
    State state;
    std::array<std::size_t, kLanes> queued{};
    std::size_t spans = 0;  ///< ended before it
    std::vector<Entry> entries;
    std::vector<std::uint32_t> waiting;
  };

  void reset();
  void save(std::size_t slot);
  void restore(const Checkpoint& checkpoint);
  std::size_t last_checkpoint_before(std::size_t first) const;
  /// kKeep: leaves checkpoints and spans.
  template <bool kKeep>
  double loop(const Work& work, double limit);
  void push(Lane lane, const Entry& entry);
  void release(const Work& work, double now);
  void arrive(const Work& work, std::uint32_t message, double now);
  void finish(const Work& work, std::size_t lane, double now);
  Span span_of(const Work& work, std::size_t lane) const;

  std::vector<double> gaps_us_;
  std::vector<double> ready_us_;
  double backward_us_ = 0.0;
  std::vector<std::uint32_t> message_of_;
  std::vector<std::uint32_t> last_member_;
  std::vector<std::uint32_t> member_count_;
  bool fused_ = false;

  State state_;
  unsigned may_start_ = 0;  ///< bit Lane: it ended or got work at this instant
  std::array<Queue, kLanes> queues_;
  std::vector<std::uint32_t> waiting_;  ///< members a message still waits for
  std::vector<Checkpoint> checkpoints_;
  std::size_t checkpoint_count_ = 0;
  std::size_t stride_ = 1;  ///< tensors between two checkpoints
  std::vector<Span> spans_;
  std::uint64_t tasks_run_ = 0;
};

}  // namespace gradpress::plan
