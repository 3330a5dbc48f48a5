#include "comm/schedule.h"

#include "comm/exchange.h"

namespace gradpress::comm {

namespace {

Status run_among_several(Exchange& exchange) {
  const bool whole = exchange.call().type == DataType::kFloat32;
  switch (exchange.call().kind) {
    case CollectiveKind::kAllReduce:
      return whole ? ring_all_reduce(exchange) : sharded_all_reduce(exchange);
    case CollectiveKind::kReduceScatter:
      return whole ? ring_reduce_scatter(exchange) : sharded_reduce_scatter(exchange);
    case CollectiveKind::kAllGather:
      return ring_all_gather(exchange);
    case CollectiveKind::kAllToAll:
      return pairwise_all_to_all(exchange);
    case CollectiveKind::kGather:
      return direct_gather(exchange);
    case CollectiveKind::kReduce:
      return whole ? tree_reduce(exchange) : sharded_reduce(exchange);
    case CollectiveKind::kBroadcast:
      return tree_broadcast(exchange);
    case CollectiveKind::kBarrier:
      return dissemination_barrier(exchange);
  }
  return Status::error(Code::kInternal, "a collective without a schedule");
}

/// Alone, every collective hands its input to its output.
void run_alone(const Collective& call) {
  if (call.kind == CollectiveKind::kBroadcast || call.kind == CollectiveKind::kBarrier) return;
  copy_bytes(call.in, call.out);
}

}  // namespace

Status run_schedule(Transport& transport, const Collective& call, std::chrono::milliseconds timeout,
                    Scratch& scratch) {
  Exchange exchange(transport, call, timeout, scratch);
  Status status = exchange.begin();
  if (!status.is_ok()) return status;
  if (transport.size() > 1) {
    status = run_among_several(exchange);
    if (!status.is_ok()) return status;
  } else {
    run_alone(call);
  }
  transport.end();
  return {};
}

}  // namespace gradpress::comm
