// A group's lane: the thread on which its calls run, one after the other.
#pragma once

#include <gradpress/group.h>

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/ring_queue.h"

namespace gradpress::comm {

/// Threads: one starts calls; any may wait or ask.
class Lane {
 public:
  /// Runs one call to its end, on the lane's thread.
  using Execute = std::function<Status(const Collective&)>;

  explicit Lane(Execute execute);
  /// Drops the calls that have not begun and waits for the one that runs.
  /// Requires: that one ends soon; who owns the lane has closed its transport. No wait() is under
  /// way.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Appends a call; its counts and tensor are copied. Cost: no allocation after the first few.
  /// Errors: the first failure of an earlier call.
  Result<Ticket> start(const Collective& call) GRADPRESS_EXCLUDES(mutex_);
  /// Errors: the first failure, unless this call was done before it; kInvalidArgument on a ticket
  /// never given.
  Status wait(Ticket ticket) GRADPRESS_EXCLUDES(mutex_);
  bool done(Ticket ticket) const GRADPRESS_EXCLUDES(mutex_);

 private:
  /// A call and the memory its views point to.
  struct Slot {
    Collective call;
    std::vector<std::size_t> counts;
    std::vector<std::size_t> receive_counts;
    std::string tensor;
  };

  void work() GRADPRESS_EXCLUDES(mutex_);
  /// An exception (no memory for scratch) ends the call, not the process.
  Status execute_guarded(const Collective& call) const;

  const Execute execute_;

  mutable Mutex mutex_;
  CondVar pending_changed_;
  CondVar done_changed_;
  RingQueue<Slot> pending_ GRADPRESS_GUARDED_BY(mutex_);
  Ticket started_ GRADPRESS_GUARDED_BY(mutex_) = 0;
  Ticket done_ GRADPRESS_GUARDED_BY(mutex_) = 0;  ///< the last that ended well
  Status failure_ GRADPRESS_GUARDED_BY(mutex_);
  bool stopping_ GRADPRESS_GUARDED_BY(mutex_) = false;

  std::thread thread_;  ///< last, so that all it uses is there
};

}  // namespace gradpress::comm
