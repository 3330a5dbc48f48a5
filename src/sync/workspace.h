// The memory that a message's stages work in: its own buffers, and the gradients of the step.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "sync/buffer_pool.h"
#include "sync/route.h"

namespace gradpress::sync {

class Workspace {
 public:
  Workspace(std::span<const std::size_t> buffer_bytes, std::size_t members) : gradients_(members) {
    buffers_.reserve(buffer_bytes.size());
    for (const std::size_t bytes : buffer_bytes) buffers_.emplace_back(bytes);
  }

  /// One buffer, which is the pool's and here from hold() to release().
  Workspace(std::shared_ptr<BufferPool> pool, std::size_t buffer_bytes, std::size_t members)
      : pool_(std::move(pool)), buffers_(1), gradients_(members) {
    pool_->announce(buffer_bytes);
  }

  void hold() {
    if (pool_ && buffers_.front().empty()) buffers_.front() = pool_->take();
  }
  void release() {
    if (pool_ && !buffers_.front().empty()) {
      pool_->give(std::exchange(buffers_.front(), Buffer<std::byte>()));
    }
  }

  /// Makes buffers that are smaller as large as this. What they held is lost.
  void grow(std::span<const std::size_t> buffer_bytes) {
    for (std::size_t i = 0; i < buffer_bytes.size(); ++i) {
      if (buffers_[i].size() < buffer_bytes[i]) buffers_[i] = Buffer<std::byte>(buffer_bytes[i]);
    }
  }

  std::vector<std::span<float>>& gradients() { return gradients_; }

  std::span<std::byte> bytes(const Area& area) {
    if (area.bytes == 0) return {};
    if (area.at.in_gradients()) {
      return std::as_writable_bytes(gradients_[area.at.member]).subspan(area.at.offset, area.bytes);
    }
    return buffers_[area.at.buffer].span().subspan(area.at.offset, area.bytes);
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
  /// The same with every number multiplied on its way: one pass instead of two.
  /// Requires: floats.
  void copy_scaled(std::span<const Transfer> transfers, float factor) {
    for (const Transfer& transfer : transfers) {
      const std::span<const float> from = floats({.at = transfer.from, .bytes = transfer.bytes});
      const std::span<float> to = floats({.at = transfer.to, .bytes = transfer.bytes});
      for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i] * factor;
    }
  }

 private:
  std::shared_ptr<BufferPool> pool_;
  std::vector<Buffer<std::byte>> buffers_;
  std::vector<std::span<float>> gradients_;
};

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace gradpress::sync
