// What the workers of a data-parallel job exchange besides gradients: that they agree, the first
// parameters, buffers, means of a few numbers.
#pragma once

#include <ATen/core/Tensor.h>
#include <gradpress/group.h>
#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace gradpress::ddp {

/// Every rank makes the same calls in the same order.
///
/// Threads: one.
/// Errors:  the group's; they end the channel.
class SideChannel {
 public:
  /// Over all ranks of `world`, which may then go its own way.
  static Result<SideChannel> make(Group& world);

  unsigned rank() const { return group_->rank(); }
  unsigned workers() const { return group_->size(); }
  SentBytes sent_bytes() const { return group_->sent_bytes(); }

  /// Ok when `own` is on every rank; else the error of the lowest rank that has one, on all.
  Status check(const Status& own);
  /// Ok when all ranks say the same; else all are told the first line in which one differs from
  /// rank 0.
  Status check_same(std::string_view description);

  /// Tensors become rank 0's.
  Status broadcast(std::span<const at::Tensor> tensors);
  /// The same in two halves: what is between them overlaps. The tensors stay untouched until then.
  /// Cost: one message for all; nothing is allocated once the largest was seen.
  Status start_broadcast(std::span<const at::Tensor> tensors);
  Status finish_broadcast(std::span<const at::Tensor> tensors);

  /// Sums in double, in the order of ranks.
  Status mean(std::span<double> values);

 private:
  explicit SideChannel(std::unique_ptr<Group> group) : group_(std::move(group)) {}
  Status broadcast_bytes(std::span<std::byte> bytes, unsigned root, std::string_view what);
  template <class T>
  Status all_gather(const std::vector<T>& own, std::vector<T>& all, std::string_view what);

  // A failed group may still write to these: they are destroyed after it.
  std::vector<std::byte> staged_;
  std::vector<std::uint64_t> own_length_{0};
  std::vector<std::uint64_t> lengths_;
  std::vector<double> own_values_;
  std::vector<double> all_values_;
  std::optional<Ticket> under_way_;
  std::unique_ptr<Group> group_;
};

}  // namespace gradpress::ddp
