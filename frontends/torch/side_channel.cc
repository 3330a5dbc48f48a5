#include "side_channel.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

namespace gradpress::ddp {

namespace {

/// Any element type lies well at a multiple of this.
constexpr std::size_t kAlignment = 64;
/// At the start parameters are staged in pieces of about this size.
constexpr std::size_t kStartBytes = std::size_t{32} << 20;

std::size_t padded(const at::Tensor& tensor) {
  return (tensor.nbytes() + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t staged_bytes(std::span<const at::Tensor> tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += padded(tensor);
  return bytes;
}

/// Copies by torch, so that strides and devices do not matter.
enum class Direction : std::uint8_t { kIntoStage, kOutOfStage };
void copy(std::span<const at::Tensor> tensors, std::span<std::byte> stage, Direction direction) {
  const torch::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) {
      at::Tensor staged = torch::from_blob(stage.data(), tensor.sizes(),
                                           torch::TensorOptions().dtype(tensor.dtype()));
      if (direction == Direction::kIntoStage) {
        staged.copy_(tensor);
      } else {
        tensor.copy_(staged);
      }
    }
    stage = stage.subspan(padded(tensor));
  }
}

std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

std::string_view or_nothing(std::string_view line) { return line.empty() ? "nothing" : line; }

Status compare(std::string_view wanted, std::string_view got) {
  while (!wanted.empty() || !got.empty()) {
    const std::string_view wanted_line = next_line(wanted);
    const std::string_view got_line = next_line(got);
    if (wanted_line != got_line) {
      return Status::error(Code::kInvalidArgument, "ddp: wanted ", or_nothing(wanted_line),
                           " as on rank 0, got ", or_nothing(got_line),
                           "; every rank wraps the same module with the same options");
    }
  }
  return {};
}

}  // namespace

Result<SideChannel> SideChannel::make(Group& world) {
  std::vector<unsigned> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0U);
  auto group = world.subgroup(ranks);
  if (!group) return tl::unexpected(group.error());
  return SideChannel(std::move(*group));
}

template <class T>
Status SideChannel::all_gather(const std::vector<T>& own, std::vector<T>& all,
                               std::string_view what) {
  all.resize(own.size() * workers());
  return group_->run({.kind = CollectiveKind::kAllGather,
                      .in = std::as_bytes(std::span(own)),
                      .out = std::as_writable_bytes(std::span(all)),
                      .tensor = what});
}

Status SideChannel::broadcast_bytes(std::span<std::byte> bytes, unsigned root,
                                    std::string_view what) {
  Collective call{.kind = CollectiveKind::kBroadcast, .root = root, .tensor = what};
  if (rank() == root) {
    call.in = bytes;
  } else {
    call.out = bytes;
  }
  return group_->run(call);
}

Status SideChannel::check(const Status& own) {
  // The code travels before the text.
  std::string text;
  if (!own) text = static_cast<char>(own.code()) + own.message();
  own_length_[0] = text.size();
  Status status = all_gather(own_length_, lengths_, "agreement");
  if (!status) return status;
  const auto failed =
      std::ranges::find_if(lengths_, [](std::uint64_t length) { return length > 0; });
  if (failed == lengths_.end()) return {};
  const auto root = static_cast<unsigned>(failed - lengths_.begin());
  staged_.resize(*failed);
  if (rank() == root) std::memcpy(staged_.data(), text.data(), text.size());
  status = broadcast_bytes(staged_, root, "agreement");
  if (!status) return status;
  text.resize(staged_.size());
  std::memcpy(text.data(), staged_.data(), staged_.size());
  return Status::error(static_cast<Code>(text[0]), "rank ", root, ": ",
                       std::string_view(text).substr(1));
}

Status SideChannel::check_same(std::string_view description) {
  own_length_[0] = description.size();
  Status status = all_gather(own_length_, lengths_, "agreement");
  if (!status) return status;
  staged_.resize(lengths_[0]);
  if (rank() == 0) std::memcpy(staged_.data(), description.data(), description.size());
  status = broadcast_bytes(staged_, 0, "agreement");
  if (!status) return status;
  std::string wanted(staged_.size(), '\0');
  std::memcpy(wanted.data(), staged_.data(), staged_.size());
  return check(compare(wanted, description));
}

Status SideChannel::start_broadcast(std::span<const at::Tensor> tensors) {
  const std::size_t bytes = staged_bytes(tensors);
  if (bytes == 0 || workers() == 1) return {};
  if (staged_.size() < bytes) staged_.resize(bytes);
  const std::span<std::byte> stage = std::span(staged_).first(bytes);
  Collective call{.kind = CollectiveKind::kBroadcast, .tensor = "buffers"};
  if (rank() == 0) {
    copy(tensors, stage, Direction::kIntoStage);
    call.in = stage;
  } else {
    call.out = stage;
  }
  const auto ticket = group_->start(call);
  if (!ticket) return ticket.error();
  under_way_ = *ticket;
  return {};
}

Status SideChannel::finish_broadcast(std::span<const at::Tensor> tensors) {
  if (!under_way_) return {};
  const Status status = group_->wait(*std::exchange(under_way_, std::nullopt));
  if (status && rank() != 0) copy(tensors, staged_, Direction::kOutOfStage);
  return status;
}

Status SideChannel::broadcast(std::span<const at::Tensor> tensors) {
  while (!tensors.empty()) {
    std::size_t count = 1;
    std::size_t bytes = padded(tensors[0]);
    while (count < tensors.size() && bytes + padded(tensors[count]) <= kStartBytes) {
      bytes += padded(tensors[count++]);
    }
    Status status = start_broadcast(tensors.first(count));
    if (status) status = finish_broadcast(tensors.first(count));
    if (!status) return status;
    tensors = tensors.subspan(count);
  }
  return {};
}

Status SideChannel::mean(std::span<double> values) {
  if (values.empty()) return {};
  own_values_.assign(values.begin(), values.end());
  const Status status = all_gather(own_values_, all_values_, "mean");
  if (!status) return status;
  for (std::size_t i = 0; i < values.size(); ++i) {
    double sum = 0.0;
    for (std::size_t from = i; from < all_values_.size(); from += values.size()) {
      sum += all_values_[from];
    }
    values[i] = sum / workers();
  }
  return {};
}

}  // namespace gradpress::ddp
