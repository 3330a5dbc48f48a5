#include "comm/local/transport.h"

#include <algorithm>
#include <utility>

namespace gradpress::comm {

LocalTransport::LocalTransport(std::shared_ptr<Board> board, unsigned rank)
    : board_(std::move(board)), rank_(rank) {}

LocalTransport::~LocalTransport() { close(); }

unsigned LocalTransport::size() const noexcept { return board_->size(); }

Status LocalTransport::begin(const Collective& call) {
  late_ = Time(0);
  return board_->begin(rank_, call);
}

void LocalTransport::post_send(unsigned to, std::span<const std::byte> bytes) {
  const bool intra =
      board_->topology().same_machine(board_->world_rank(rank_), board_->world_rank(to));
  (intra ? intra_bytes_ : inter_bytes_).fetch_add(bytes.size(), std::memory_order_relaxed);
  board_->post_send(rank_, to, bytes, emulated_now());
}

void LocalTransport::post_receive(unsigned from, std::span<std::byte> bytes) {
  board_->post_receive(from, rank_, bytes, emulated_now());
}

Status LocalTransport::wait_send(unsigned to, std::chrono::milliseconds timeout) {
  const Time since = emulated_now();
  return after_wait(since, board_->wait_send(rank_, to, timeout));
}

Status LocalTransport::wait_receive(unsigned from, std::chrono::milliseconds timeout) {
  const Time since = emulated_now();
  return after_wait(since, board_->wait_receive(from, rank_, timeout));
}

void LocalTransport::close() { board_->leave(rank_); }

SentBytes LocalTransport::sent_bytes() const {
  return {.intra = intra_bytes_.load(std::memory_order_relaxed),
          .inter = inter_bytes_.load(std::memory_order_relaxed)};
}

Result<std::unique_ptr<Transport>> LocalTransport::subgroup(std::span<const unsigned> ranks) {
  const auto place = std::ranges::find(ranks, rank_) - ranks.begin();
  return std::make_unique<LocalTransport>(board_->subgroup(rank_, ranks),
                                          static_cast<unsigned>(place));
}

Time LocalTransport::emulated_now() const { return board_->clock().now() - late_; }

Status LocalTransport::after_wait(Time since, const Result<Time>& event) {
  if (!event) return event.error();
  if (*event > since) late_ = board_->clock().now() - *event;
  return {};
}

}  // namespace gradpress::comm
