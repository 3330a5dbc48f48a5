// A queue that keeps its memory: after the first few turns neither push nor pop allocates.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace gradpress {

/// First in, first out, with access by place. A popped element keeps what it owns (a string's or a
/// vector's memory) for the one that takes its place: push_back() returns it as it was left.
/// Requires: T is default-constructible and movable. Threads: one at a time.
template <class T>
class RingQueue {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }
  /// Counted from the front. Requires: index < size().
  T& operator[](std::size_t index) { return slots_[place(index)]; }
  T& front() { return (*this)[0]; }

  /// A used element to be overwritten. References to others end when the ring grows.
  T& push_back() {
    if (count_ == slots_.size()) grow();
    return (*this)[count_++];
  }
  /// Requires: not empty.
  void pop_front() {
    first_ = place(1);
    --count_;
  }

 private:
  /// Sizes are powers of two.
  std::size_t place(std::size_t index) const { return (first_ + index) & (slots_.size() - 1); }
  void grow() {
    std::vector<T> larger(slots_.empty() ? 4 : 2 * slots_.size());
    for (std::size_t i = 0; i < count_; ++i) larger[i] = std::move((*this)[i]);
    slots_ = std::move(larger);
    first_ = 0;
  }

  std::vector<T> slots_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

}  // namespace gradpress
