#include "engine/exchange.h"

#include <algorithm>

#include "kernels/vector.h"

namespace gradpress::engine {

Result<double> Exchange::slowest(double mine) {
  in_.assign(1, static_cast<float>(mine));
  out_.resize(std::max<std::size_t>(out_.size(), world_.size()));
  const std::span<float> all = std::span(out_).first(world_.size());
  const Status status = world_.run({.kind = CollectiveKind::kAllGather,
                                    .type = DataType::kFloat32,
                                    .in = std::as_bytes(std::span(in_)),
                                    .out = std::as_writable_bytes(all),
                                    .tensor = "step time"});
  if (!status) return tl::unexpected(status);
  return *std::ranges::max_element(all);
}

Status Exchange::to_mean(std::span<float> values) {
  out_.assign(values.begin(), values.end());
  const Status status = world_.run({.kind = CollectiveKind::kAllReduce,
                                    .type = DataType::kFloat32,
                                    .in = std::as_bytes(std::span(out_)),
                                    .out = std::as_writable_bytes(std::span(out_)),
                                    .tensor = "change of plan"});
  if (!status) return status;
  kernels::scale(out_, 1.0F / static_cast<float>(world_.size()));
  std::ranges::copy(out_, values.begin());
  return {};
}

Result<std::string> Exchange::from_first(const std::string& mine) {
  text_ = mine;
  size_ = text_.size();
  if (Status status = broadcast(std::as_writable_bytes(std::span(&size_, 1))); !status) {
    return tl::unexpected(status);
  }
  text_.resize(size_);
  if (size_ == 0) return text_;
  if (Status status = broadcast(std::as_writable_bytes(std::span(text_))); !status) {
    return tl::unexpected(status);
  }
  return text_;
}

Status Exchange::broadcast(std::span<std::byte> bytes) {
  const bool root = world_.rank() == 0;
  return world_.run({.kind = CollectiveKind::kBroadcast,
                     .type = DataType::kBytes,
                     .in = root ? bytes : std::span<std::byte>(),
                     .out = root ? std::span<std::byte>() : bytes,
                     .tensor = "profile"});
}

Status Exchange::barrier() { return world_.run({.kind = CollectiveKind::kBarrier}); }

}  // namespace gradpress::engine
