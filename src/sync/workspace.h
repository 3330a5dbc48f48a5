// The memory that a message's stages work in: buffers, its own or shared with other messages, and
// the gradients of the step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "kernels/vector.h"
#include "sync/buffer_pool.h"
#include "sync/route.h"
#include "sync/store.h"

namespace gradpress::sync {

class Workspace {
 public:
  /// Buffers side by side in the store.
  Workspace(std::shared_ptr<Store> store, std::span<const std::size_t> buffer_bytes,
            std::size_t members)
      : store_(std::move(store)),
        sizes_(buffer_bytes.begin(), buffer_bytes.end()),
        gradients_(members) {
    place();
  }

  /// One buffer, which is the pool's and here from hold() to release().
  Workspace(std::shared_ptr<BufferPool> pool, std::size_t buffer_bytes, std::size_t members)
      : pool_(std::move(pool)), gradients_(members) {
    pool_->announce(buffer_bytes);
  }

  void hold() {
    if (pool_ && held_.empty()) held_ = pool_->take();
  }
  void release() {
    if (pool_ && !held_.empty()) pool_->give(std::exchange(held_, Buffer<std::byte>()));
  }

  /// One buffer more, for whoever encodes. Nobody reads what another left there.
  void add_scratch(std::size_t bytes) {
    scratch_bytes_ = std::max(scratch_bytes_, bytes);
    if (store_) place();
  }
  std::span<std::byte> scratch() { return store_->span().subspan(scratch_at_, scratch_bytes_); }

  /// Before a step: the memory is there.
  void reserve() {
    if (store_) store_->reserve();
  }

  std::vector<std::span<float>>& gradients() { return gradients_; }

  std::span<std::byte> bytes(const Area& area) {
    if (area.bytes == 0) return {};
    if (area.at.in_gradients()) {
      return std::as_writable_bytes(gradients_[area.at.member]).subspan(area.at.offset, area.bytes);
    }
    const std::span<std::byte> all = pool_ ? held_.span() : store_->span();
    const std::size_t begin = pool_ ? 0 : begins_[area.at.buffer];
    return all.subspan(begin + area.at.offset, area.bytes);
  }
  /// Requires: the area holds floats.
  std::span<float> floats(const Area& area) {
    const std::span<std::byte> raw = bytes(area);
    return {reinterpret_cast<float*>(raw.data()), raw.size() / sizeof(float)};
  }
  float value(const Spot& spot) { return floats({.at = spot, .bytes = sizeof(float)}).front(); }

  void copy(std::span<const Transfer> transfers) {
    for (const Transfer& transfer : transfers) {
      std::memcpy(bytes({.at = transfer.to, .bytes = transfer.bytes}).data(),
                  bytes({.at = transfer.from, .bytes = transfer.bytes}).data(), transfer.bytes);
    }
  }
  /// The same with every number multiplied on its way: one pass instead of two. Returns whether
  /// all that came is finite. Requires: floats.
  bool copy_scaled(std::span<const Transfer> transfers, float factor) {
    bool finite = true;
    for (const Transfer& transfer : transfers) {
      finite = kernels::scale_into(floats({.at = transfer.from, .bytes = transfer.bytes}), factor,
                                   floats({.at = transfer.to, .bytes = transfer.bytes})) &&
               finite;
    }
    return finite;
  }

 private:
  /// As buffers of their own would be: no two share a cache line.
  static constexpr std::size_t kAlignment = 64;

  void place() {
    std::size_t end = 0;
    const auto next = [&](std::size_t bytes) {
      return std::exchange(end, end + (bytes + kAlignment - 1) / kAlignment * kAlignment);
    };
    begins_.clear();
    for (const std::size_t bytes : sizes_) begins_.push_back(next(bytes));
    scratch_at_ = next(scratch_bytes_);
    store_->announce(end);
  }

  std::shared_ptr<Store> store_;      ///< or
  std::shared_ptr<BufferPool> pool_;  ///< never both
  Buffer<std::byte> held_;            ///< the pool's
  std::vector<std::size_t> sizes_;    ///< of the buffers in the store
  std::vector<std::size_t> begins_;
  std::size_t scratch_bytes_ = 0;
  std::size_t scratch_at_ = 0;
  std::vector<std::span<float>> gradients_;
};

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace gradpress::sync
