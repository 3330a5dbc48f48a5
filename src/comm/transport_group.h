// A group over any backend's transport.
#pragma once

#include <gradpress/group.h>

#include <chrono>
#include <memory>
#include <span>
#include <string_view>

#include "comm/lane.h"
#include "comm/schedule.h"
#include "comm/transport.h"

namespace gradpress::comm {

/// Checks calls, queues them on a lane and runs them there by the schedules.
class TransportGroup final : public Group {
 public:
  /// `timeout` is for calls that bring none. Requires: above zero.
  TransportGroup(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout);
  /// Closes the transport, which ends the running call, so that the lane can be joined.
  ~TransportGroup() override;

  unsigned rank() const noexcept override { return transport_->rank(); }
  unsigned size() const noexcept override { return transport_->size(); }
  std::string_view backend() const noexcept override { return transport_->backend(); }
  Result<Ticket> start(const Collective& call) override;
  Status wait(Ticket ticket) override { return lane_.wait(ticket); }
  bool done(Ticket ticket) const override { return lane_.done(ticket); }
  Result<std::unique_ptr<Group>> subgroup(std::span<const unsigned> ranks) override;
  SentBytes sent_bytes() const override { return transport_->sent_bytes(); }

 private:
  const std::chrono::milliseconds timeout_;
  Scratch scratch_;  ///< the lane's alone; outlives the transport, which may still receive into it
  const std::unique_ptr<Transport> transport_;
  Lane lane_;  ///< last: its thread ends before what it uses
};

}  // namespace gradpress::comm
