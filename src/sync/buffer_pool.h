// Buffers that messages take turns with: those that are gathered, summed and scattered in one
// stage, of which a link carries two at a time. What was used last is used next, while caches still
// have it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/mutex.h"

namespace gradpress::sync {

/// Buffers that were made before a larger size was announced are too small for it: announce all
/// before the first reserve().
/// Threads: announce() and reserve() before steps; take() and give() any.
class BufferPool {
 public:
  /// Buffers have room for the largest size that was announced.
  void announce(std::size_t bytes) { bytes_ = std::max(bytes_, bytes); }
  /// Makes buffers for so many messages at once; further ones are made when they are asked for.
  void reserve(std::size_t messages) {
    const MutexLock lock(mutex_);
    free_.reserve(messages);
    while (bytes_ > 0 && free_.size() < messages) {
      free_.emplace_back(bytes_);
      made_ += bytes_;
    }
  }

  Buffer<std::byte> take() {
    {
      const MutexLock lock(mutex_);
      if (!free_.empty()) {
        Buffer<std::byte> buffer = std::move(free_.back());
        free_.pop_back();
        return buffer;
      }
      made_ += bytes_;
    }
    return Buffer<std::byte>(bytes_);
  }
  void give(Buffer<std::byte> buffer) {
    const MutexLock lock(mutex_);
    free_.push_back(std::move(buffer));
  }
  /// Of all buffers it made so far.
  std::size_t made_bytes() {
    const MutexLock lock(mutex_);
    return made_;
  }

 private:
  std::size_t bytes_ = 0;
  Mutex mutex_;
  std::vector<Buffer<std::byte>> free_ GRADPRESS_GUARDED_BY(mutex_);
  std::size_t made_ GRADPRESS_GUARDED_BY(mutex_) = 0;
};

}  // namespace gradpress::sync
