// Where time comes from: one interface, so that tests can make it pass without waiting.
#pragma once

#include <chrono>

#include "base/mutex.h"

namespace gradpress {

/// Nanoseconds since a clock's own beginning; never goes back.
using Time = std::chrono::nanoseconds;

/// Threads: any number at once.
class Clock {
 public:
  virtual ~Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  virtual Time now() const = 0;
  /// Sleeps until `time`, a notification, or for no reason at all.
  virtual void wait_until(CondVar& changed, Mutex& mutex, Time time) GRADPRESS_REQUIRES(mutex) = 0;

 protected:
  Clock() = default;
};

/// The process's steady clock. Lives for ever.
Clock& steady_clock();

}  // namespace gradpress
