// Memory in which messages take turns: those whose stages are spread over a step, so that they need
// it from their first stage to their last.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/buffer.h"

namespace gradpress::sync {

/// Threads: announce() and reserve() while no message of it is in a step; then whoever runs the
///          message whose turn it is. Who gives the turn on orders what both do.
class Store {
 public:
  /// A message will want so many bytes.
  void announce(std::size_t bytes) { wanted_ = std::max(wanted_, bytes); }
  /// Makes room for the largest that was announced. What was there is lost when that is more.
  void reserve() {
    if (bytes_.size() < wanted_) {
      bytes_ = Buffer<std::byte>();  // first, so that both are never there together
      bytes_ = Buffer<std::byte>(wanted_);
    }
  }
  std::span<std::byte> span() { return bytes_.span(); }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::size_t wanted_ = 0;
  Buffer<std::byte> bytes_;
};

}  // namespace gradpress::sync
