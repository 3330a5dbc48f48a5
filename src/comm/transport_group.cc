#include "comm/transport_group.h"

#include <utility>

#include "comm/agreement.h"

namespace gradpress::comm {

TransportGroup::TransportGroup(std::unique_ptr<Transport> transport,
                               std::chrono::milliseconds timeout)
    : timeout_(timeout), transport_(std::move(transport)), lane_([this](const Collective& call) {
        return run_schedule(*transport_, call, call.timeout.count() > 0 ? call.timeout : timeout_,
                            scratch_);
      }) {}

TransportGroup::~TransportGroup() { transport_->close(); }

Result<Ticket> TransportGroup::start(const Collective& call) {
  const Status status = check_collective(call, rank(), size());
  if (!status.is_ok()) return tl::unexpected(status);
  return lane_.start(call);
}

Result<std::unique_ptr<Group>> TransportGroup::subgroup(std::span<const unsigned> ranks) {
  const Status status = check_subgroup(ranks, rank(), size());
  if (!status.is_ok()) return tl::unexpected(status);
  auto transport = transport_->subgroup(ranks);
  if (!transport) return tl::unexpected(transport.error());
  return std::make_unique<TransportGroup>(std::move(*transport), timeout_);
}

}  // namespace gradpress::comm
