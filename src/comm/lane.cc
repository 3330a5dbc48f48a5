#include "comm/lane.h"

#include <sys/prctl.h>

#include <exception>
#include <utility>

#include "base/thread_turns.h"
#include "comm/quiet_pipe.h"

namespace gradpress::comm {

Lane::Lane(Execute execute) : execute_(std::move(execute)), thread_([this] { work(); }) {}

Lane::~Lane() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  pending_changed_.notify_one();
  thread_.join();
}

Result<Ticket> Lane::start(const Collective& call) {
  Ticket ticket = 0;
  {
    const MutexLock lock(mutex_);
    if (!failure_.is_ok()) return tl::unexpected(failure_);
    Slot& slot = pending_.push_back();
    slot.call = call;
    slot.counts.assign(call.counts.begin(), call.counts.end());
    slot.receive_counts.assign(call.receive_counts.begin(), call.receive_counts.end());
    slot.tensor.assign(call.tensor);
    ticket = ++started_;
  }
  pending_changed_.notify_one();
  return ticket;
}

Status Lane::wait(Ticket ticket) {
  const MutexLock lock(mutex_);
  if (ticket == 0 || ticket > started_) {
    return Status::error(Code::kInvalidArgument, "ticket ", ticket,
                         " was never given, the last is ", started_);
  }
  while (done_ < ticket && failure_.is_ok()) done_changed_.wait(mutex_);
  return done_ >= ticket ? Status() : failure_;
}

bool Lane::done(Ticket ticket) const {
  const MutexLock lock(mutex_);
  return done_ >= ticket || ticket > started_ || !failure_.is_ok();
}

void Lane::work() {
  // Emulated links sleep until a message is due: wake on time, not up to 50 us later. A hint only.
  (void)prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  const ThreadTurns prompt(Turns::kPrompt);
  const QuietPipe quiet;
  Slot slot;
  MutexLock lock(mutex_);
  while (true) {
    while (pending_.empty() && !stopping_) pending_changed_.wait(mutex_);
    if (stopping_) return;
    // Out of the ring, which may grow meanwhile; the swap hands the last slot's memory back.
    std::swap(slot, pending_.front());
    pending_.pop_front();
    if (!failure_.is_ok()) continue;
    slot.call.counts = slot.counts;
    slot.call.receive_counts = slot.receive_counts;
    slot.call.tensor = slot.tensor;
    lock.unlock();
    const Status status = execute_guarded(slot.call);
    lock.lock();
    if (status.is_ok()) {
      ++done_;
    } else {
      failure_ = status;
    }
    done_changed_.notify_all();
  }
}

Status Lane::execute_guarded(const Collective& call) const {
  try {
    return execute_(call);
  } catch (const std::exception& error) {
    return Status::error(Code::kInternal, collective_name(call.kind), " of ", call.tensor, ": ",
                         error.what());
  }
}

}  // namespace gradpress::comm
