// std's mutex and condition variable with the annotations that clang's lock check needs.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/thread_annotations.h"

namespace gradpress {

class GRADPRESS_CAPABILITY("mutex") Mutex {
 public:
  void lock() GRADPRESS_ACQUIRE() { native_.lock(); }
  void unlock() GRADPRESS_RELEASE() { native_.unlock(); }

 private:
  friend class CondVar;
  std::mutex native_;
};

/// Holds a mutex for a scope; may let go of it in between.
class GRADPRESS_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) GRADPRESS_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() GRADPRESS_RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() GRADPRESS_RELEASE() {
    mutex_.unlock();
    held_ = false;
  }
  void lock() GRADPRESS_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

/// Waits may end early: every caller checks its condition in a loop.
class CondVar {
 public:
  void wait(Mutex& mutex) GRADPRESS_REQUIRES(mutex) {
    std::unique_lock lock(mutex.native_, std::adopt_lock);
    native_.wait(lock);
    lock.release();
  }
  void wait_until(Mutex& mutex, std::chrono::steady_clock::time_point time)
      GRADPRESS_REQUIRES(mutex) {
    std::unique_lock lock(mutex.native_, std::adopt_lock);
    native_.wait_until(lock, time);
    lock.release();
  }
  void notify_one() { native_.notify_one(); }
  void notify_all() { native_.notify_all(); }

 private:
  std::condition_variable native_;
};

}  // namespace gradpress
