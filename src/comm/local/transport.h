// A local group's messages: one member's end of its board.
#pragma once

#include <gradpress/group.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "comm/local/board.h"
#include "comm/transport.h"

namespace gradpress::comm {

/// A lane that wakes late goes on as if it had woken on time: what
/// it then sends counts as sent when the message it waited for arrived, plus the time it worked. So
/// the emulated link, not the scheduler, decides how long a collective takes, as long as there is
/// CPU time to catch up with.
class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<Board> board, unsigned rank);
  /// Leaves the board.
  ~LocalTransport() override;

  unsigned rank() const noexcept override { return rank_; }
  unsigned size() const noexcept override;
  std::string_view backend() const noexcept override { return "local"; }
  Status begin(const Collective& call) override;
  void end() override {}
  void post_send(unsigned to, std::span<const std::byte> bytes) override;
  void post_receive(unsigned from, std::span<std::byte> bytes) override;
  Status wait_send(unsigned to, std::chrono::milliseconds timeout) override;
  Status wait_receive(unsigned from, std::chrono::milliseconds timeout) override;
  void close() override;
  SentBytes sent_bytes() const override;
  Result<std::unique_ptr<Transport>> subgroup(std::span<const unsigned> ranks) override;

 private:
  Time emulated_now() const;
  /// `event`: when what was waited for since emulated time `since` happened.
  Status after_wait(Time since, const Result<Time>& event);

  const std::shared_ptr<Board> board_;
  const unsigned rank_;
  Time late_{0};  ///< the lane's alone
  std::atomic<std::uint64_t> intra_bytes_{0};
  std::atomic<std::uint64_t> inter_bytes_{0};
};

}  // namespace gradpress::comm
