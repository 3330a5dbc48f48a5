#include "plan/simulator.h"

#include <algorithm>
#include <bit>

namespace gradpress::plan {

namespace {

constexpr std::size_t kDevice = 0;
constexpr std::uint8_t kBackward = 0xFF;  ///< position of a backward
constexpr std::uint8_t kLead = 0xFE;      ///< position of a member's own first Comp
constexpr std::size_t kCheckpoints = 24;
/// What going back to a checkpoint costs, in tasks.
constexpr std::uint64_t kProbeTasks = 24;
/// Sums of loads and sums of times differ by rounding: the early end leaves this much room.
constexpr double kSlackUs = 1e-6;

}  // namespace

Simulator::Simulator(const Trace& trace, const Buckets& buckets)
    : message_of_(buckets.of_tensor),
      last_member_(buckets.count, 0),
      member_count_(buckets.count, 0),
      fused_(buckets.count != trace.tensors.size()),
      state_{},
      waiting_(buckets.count, 0) {
  const std::size_t n = trace.tensors.size();
  gaps_us_.reserve(n);
  ready_us_.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    gaps_us_.push_back(trace.tensors[i].ready_gap_us);
    backward_us_ += gaps_us_.back();
    ready_us_.push_back(backward_us_);
    last_member_[message_of_[i]] = static_cast<std::uint32_t>(i);
    ++member_count_[message_of_[i]];
  }
  for (Queue& queue : queues_) {
    queue.entries.resize(n + std::size_t{buckets.count} * Option::kMaxActions);
  }
  stride_ = n / kCheckpoints + 1;
  checkpoints_.resize(n / stride_ + 2);
}

void Simulator::reset() {
  state_ = State{};
  state_.end_us.fill(kNever);
  for (Queue& queue : queues_) queue.head = queue.tail = 0;
  if (fused_) waiting_ = member_count_;
}

void Simulator::save(std::size_t slot) {
  Checkpoint& checkpoint = checkpoints_[slot];
  checkpoint.state = state_;
  checkpoint.spans = spans_.size();
  checkpoint.entries.clear();
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const Queue& queue = queues_[lane];
    checkpoint.queued[lane] = queue.tail - queue.head;
    checkpoint.entries.insert(checkpoint.entries.end(), queue.entries.data() + queue.head,
                              queue.entries.data() + queue.tail);
  }
  if (fused_) checkpoint.waiting = waiting_;
}

void Simulator::restore(const Checkpoint& checkpoint) {
  state_ = checkpoint.state;
  const Entry* from = checkpoint.entries.data();
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    Queue& queue = queues_[lane];
    queue.head = 0;
    queue.tail = checkpoint.queued[lane];
    std::copy_n(from, queue.tail, queue.entries.data());
    from += queue.tail;
  }
  if (fused_) waiting_ = checkpoint.waiting;
}

std::size_t Simulator::last_checkpoint_before(std::size_t first) const {
  std::size_t slot = checkpoint_count_;
  while (slot > 0 && checkpoints_[slot - 1].state.next_tensor > first) --slot;
  return slot;  // one past the last that fits; 0: none
}

inline void Simulator::push(Lane lane, const Entry& entry) {
  Queue& queue = queues_[static_cast<std::size_t>(lane)];
  may_start_ |= 1U << static_cast<unsigned>(lane);
  // Time only moves forward, so the queue is in order but for entries of this very instant.
  std::size_t at = queue.tail++;
  while (at > queue.head && queue.entries[at - 1].runnable_us == entry.runnable_us &&
         queue.entries[at - 1].index > entry.index) {
    queue.entries[at] = queue.entries[at - 1];
    --at;
  }
  queue.entries[at] = entry;
}

inline void Simulator::arrive(const Work& work, std::uint32_t message, double now) {
  if (fused_ && --waiting_[message] != 0) return;
  const Chain& chain = *work.chains[message];
  if (chain.count == 0) return;
  push(chain.lanes[0], {now, last_member_[message], message, 0});
}

/// Ends the backward of next_tensor, and of those after it that take no time.
inline void Simulator::release(const Work& work, double now) {
  std::uint32_t tensor = state_.next_tensor;
  do {
    if (!work.leads.empty() && work.leads[tensor].us > 0.0) {
      push(work.leads[tensor].lane, {now, tensor, tensor, kLead});
    } else {
      arrive(work, message_of_[tensor], now);
    }
    ++tensor;
  } while (tensor < gaps_us_.size() && gaps_us_[tensor] == 0.0);
  state_.next_tensor = tensor;
}

inline void Simulator::finish(const Work& work, std::size_t lane, double now) {
  const Entry& ended = state_.running[lane];
  state_.end_us[lane] = kNever;
  if (ended.position == kBackward) {
    release(work, now);
  } else if (ended.position == kLead) {
    arrive(work, message_of_[ended.id], now);
  } else {
    const Chain& chain = *work.chains[ended.id];
    const auto next = static_cast<std::uint8_t>(ended.position + 1);
    if (next < chain.count) push(chain.lanes[next], {now, ended.index, ended.id, next});
  }
}

Span Simulator::span_of(const Work& work, std::size_t lane) const {
  const Entry& ended = state_.running[lane];
  Span span{.lane = static_cast<Lane>(lane),
            .message = ended.id,
            .tensor = ended.index,
            .runnable_us = ended.runnable_us,
            .start_us = state_.start_us[lane],
            .end_us = state_.end_us[lane]};
  if (ended.position == kLead) {
    span.kind = SpanKind::kEncode;
    span.message = message_of_[ended.id];
  } else if (ended.position != kBackward) {
    span.kind = SpanKind::kComm;  // what is codec work, the option's action says
    span.action = work.chains[ended.id]->actions[ended.position];
  }
  return span;
}

template <bool kKeep>
double Simulator::loop(const Work& work, double limit) {
  const std::size_t n = gaps_us_.size();
  const double stop = limit + kSlackUs;
  Loads total = work.loads;
  total[kDevice] += backward_us_;
  double now = 0.0;
  bool at_start = state_.next_tensor == 0 && state_.end_us[kDevice] == kNever;
  may_start_ = (1U << kLanes) - 1;
  if (at_start && gaps_us_[0] == 0.0) release(work, 0.0);
  std::uint64_t tasks = 0;
  for (;;) {
    if (!at_start) {
      if constexpr (kKeep) {
        if (state_.next_tensor >= checkpoint_count_ * stride_ &&
            checkpoint_count_ < checkpoints_.size()) {
          save(checkpoint_count_++);
        }
      }
      const double next = std::min(std::min(state_.end_us[0], state_.end_us[1]),
                                   std::min(state_.end_us[2], state_.end_us[3]));
      if (next == kNever) break;
      now = next;
      // Mostly one lane ends and one or two may start: bits instead of four doubtful branches.
      unsigned ended = 0;
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        ended |= static_cast<unsigned>(state_.end_us[lane] == now) << lane;
      }
      may_start_ = ended;
      for (; ended != 0; ended &= ended - 1) {
        const auto lane = static_cast<std::size_t>(std::countr_zero(ended));
        if constexpr (kKeep) spans_.push_back(span_of(work, lane));
        finish(work, lane, now);
      }
    }
    at_start = false;
    for (; may_start_ != 0; may_start_ &= may_start_ - 1) {
      const auto lane = static_cast<std::size_t>(std::countr_zero(may_start_));
      if (state_.end_us[lane] != kNever) continue;
      Queue& queue = queues_[lane];
      double us = 0.0;
      if (queue.head != queue.tail) {
        const Entry& entry = queue.entries[queue.head++];
        state_.running[lane] = entry;
        us = entry.position == kLead ? work.leads[entry.id].us
                                     : work.chains[entry.id]->us[entry.position];
      } else if (lane == kDevice && state_.next_tensor < n) {
        const std::uint32_t tensor = state_.next_tensor;
        state_.running[lane] = {now, tensor, tensor, kBackward};
        us = gaps_us_[tensor];
      } else {
        continue;
      }
      ++tasks;
      // This lane is busy from now on at least until all its work is done.
      if (now + total[lane] - state_.started_us[lane] >= stop) {
        tasks_run_ += tasks;
        return kNever;
      }
      state_.started_us[lane] += us;
      state_.start_us[lane] = now;
      state_.end_us[lane] = now + us;
    }
  }
  tasks_run_ += tasks;
  return now;
}

double Simulator::run(const Work& work) {
  reset();
  checkpoint_count_ = 0;
  spans_.clear();
  return loop<true>(work, kNever);
}

double Simulator::rerun(const Work& work, std::size_t first) {
  const std::size_t slot = last_checkpoint_before(first);
  if (slot == 0) return run(work);
  restore(checkpoints_[slot - 1]);
  checkpoint_count_ = slot;
  spans_.resize(checkpoints_[slot - 1].spans);
  return loop<true>(work, kNever);
}

double Simulator::probe(const Work& work, std::size_t first, double limit) {
  tasks_run_ += kProbeTasks;
  const std::size_t slot = last_checkpoint_before(first);
  if (slot == 0) {
    reset();
  } else {
    restore(checkpoints_[slot - 1]);
  }
  return loop<false>(work, limit);
}

}  // namespace gradpress::plan
