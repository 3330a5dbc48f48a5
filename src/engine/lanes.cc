// The threads of a runtime: what each lane does, step after step.
#include "engine/runtime.h"

#include <algorithm>
#include <array>

namespace gradpress::engine {

void Runtime::host_lane() {
  for (;;) {
    Task task;
    {
      const MutexLock lock(mutex_);
      while (host_queue_.empty() && !stopping_) host_changed_.wait(mutex_);
      if (stopping_) return;
      task = host_queue_.front();
      host_queue_.pop_front();
      if (!failure_) continue;
    }
    run_task(task, plan::Lane::kHost);
  }
}

bool Runtime::await_turn(const Turn& turn, CondVar& changed) {
  const Journey& journey = *journeys_[turn.message];
  const MutexLock lock(mutex_);
  while (!stopping_ && failure_ && !(journey.runnable && journey.stage == turn.stage)) {
    changed.wait(mutex_);
  }
  return !stopping_ && failure_.is_ok();
}

bool Runtime::turn_is_runnable(const Turn& turn) {
  const Journey& journey = *journeys_[turn.message];
  const MutexLock lock(mutex_);
  return failure_ && journey.runnable && journey.stage == turn.stage;
}

Status Runtime::begin_turn(const Turn& turn, Time& runnable_at) {
  Journey& journey = *journeys_[turn.message];
  {
    const MutexLock lock(mutex_);
    journey.runnable = false;
    runnable_at = journey.runnable_at;
  }
  return journey.message->start(turn.stage);
}

void Runtime::link_lane(sync::Link link) {
  CondVar& changed = link_changed_[static_cast<std::size_t>(link)];
  const std::vector<Turn>& order = program_.order[static_cast<std::size_t>(link)];
  const auto phase_of = [&](const Turn& turn) {
    return journeys_[turn.message]->message->stages()[turn.stage].action.phase;
  };
  const auto same_group = [&](const Turn& a, const Turn& b) {
    return &fabric_.group(phase_of(a)) == &fabric_.group(phase_of(b));
  };
  std::array<Time, kInFlight> started{};
  std::array<Time, kInFlight> runnable_at{};
  for (std::uint64_t steps = 0;; ++steps) {
    bool counting = false;
    {
      const MutexLock lock(mutex_);
      while (steps_begun_ == steps && !stopping_) changed.wait(mutex_);
      if (stopping_) return;
      counting = counting_;
    }
    const std::size_t in_flight = counting ? 1 : kInFlight;
    SentBytes sent_before;
    Time last_end{0};
    std::size_t next = 0;
    for (std::size_t oldest = 0; oldest < order.size(); ++oldest) {
      while (next < order.size() && next < oldest + in_flight) {
        const Turn& turn = order[next];
        if (next == oldest) {
          if (!await_turn(turn, changed)) return;
        } else if (!same_group(order[oldest], turn) || !turn_is_runnable(turn)) {
          break;
        }
        started[next % kInFlight] = clock_.now();
        if (counting) sent_before = sent_by(turn);
        if (Status status = begin_turn(turn, runnable_at[next % kInFlight]); !status) {
          return fail_with(status);
        }
        ++next;
      }
      const Turn& turn = order[oldest];
      if (Status status = journeys_[turn.message]->message->wait(turn.stage); !status) {
        return fail_with(status);
      }
      const Time end = clock_.now();
      if (counting) count(turn, sent_before);
      if (options_.record_spans) {
        record(lane_of(link),
               {.message = turn.message,
                .stage = turn.stage,
                .runnable_at = runnable_at[oldest % kInFlight]},
               std::max(started[oldest % kInFlight], last_end), end);
      }
      last_end = end;
      advance(turn.message, turn.stage + 1);
    }
  }
}

}  // namespace gradpress::engine
