#include "engine/unused.h"

#include <algorithm>
#include <utility>

namespace gradpress::engine {

UnusedAgreement::UnusedAgreement(std::unique_ptr<Group> group, std::size_t tensors)
    : mine_((tensors + 7) / 8),
      all_(mine_.size() * group->size()),
      used_(tensors),
      group_(std::move(group)) {}

Status UnusedAgreement::start(std::span<const std::uint8_t> used) {
  std::ranges::fill(mine_, std::byte{0});
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i] != 0) mine_[i / 8] |= std::byte{1} << (i % 8);
  }
  const auto ticket = group_->start({.kind = CollectiveKind::kAllGather,
                                     .type = DataType::kBytes,
                                     .in = mine_,
                                     .out = all_,
                                     .tensor = "which tensors are used"});
  if (!ticket) return ticket.error();
  ticket_ = *ticket;
  return {};
}

Result<std::span<const std::uint8_t>> UnusedAgreement::finish() {
  if (Status status = group_->wait(ticket_); !status) return tl::unexpected(status);
  for (std::size_t i = 0; i < used_.size(); ++i) {
    std::byte any{0};
    for (std::size_t at = i / 8; at < all_.size(); at += mine_.size()) any |= all_[at];
    used_[i] = (any & (std::byte{1} << (i % 8))) != std::byte{0} ? 1 : 0;
  }
  return std::span<const std::uint8_t>(used_);
}

}  // namespace gradpress::engine
