#include <gradpress/group.h>

#include <functional>
#include <limits>

#include "comm/agreement.h"

namespace gradpress {

std::string_view collective_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kAllToAll:
      return "all-to-all";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "unknown";
}

Status Group::run(const Collective& call) {
  const auto ticket = start(call);
  return ticket ? wait(*ticket) : ticket.error();
}

namespace {

/// Sizes in bytes that a call must have on this rank.
struct Wanted {
  std::size_t in = 0;
  std::size_t out = 0;
};

/// Bytes of all counts; saturates, so that no sum of huge counts passes for a small one.
std::size_t sum_bytes(std::span<const std::size_t> counts, std::size_t unit) {
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  std::size_t bytes = 0;
  for (const std::size_t count : counts) {
    if (count > (kMost - bytes) / unit) return kMost;
    bytes += count * unit;
  }
  return bytes;
}

Result<Wanted> wanted_sizes(const Collective& call, unsigned rank, unsigned size) {
  const std::size_t unit = size_of(call.type);
  const bool equal = call.counts.empty();
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return Wanted{.in = call.in.size(), .out = call.in.size()};
    case CollectiveKind::kReduce:
      return Wanted{.in = call.in.size(),
                    .out = rank == call.root ? call.in.size() : call.out.size()};
    case CollectiveKind::kReduceScatter:
      if (equal) return Wanted{.in = call.out.size() * size, .out = call.out.size()};
      return Wanted{.in = sum_bytes(call.counts, unit), .out = call.counts[rank] * unit};
    case CollectiveKind::kAllGather:
      if (equal) return Wanted{.in = call.in.size(), .out = call.in.size() * size};
      return Wanted{.in = call.counts[rank] * unit, .out = sum_bytes(call.counts, unit)};
    case CollectiveKind::kGather: {
      const bool root = rank == call.root;
      if (equal)
        return Wanted{.in = call.in.size(), .out = root ? call.in.size() * size : call.out.size()};
      return Wanted{.in = call.counts[rank] * unit,
                    .out = root ? sum_bytes(call.counts, unit) : call.out.size()};
    }
    case CollectiveKind::kAllToAll:
      if (equal != call.receive_counts.empty()) {
        return fail(Code::kInvalidArgument, "wanted both counts and receive counts, or neither");
      }
      if (equal && call.in.size() % (size * unit) != 0) {
        return fail(Code::kInvalidArgument, call.in.size(), " B do not split evenly over ", size,
                    " ranks; give counts");
      }
      if (equal) return Wanted{.in = call.in.size(), .out = call.in.size()};
      return Wanted{.in = sum_bytes(call.counts, unit),
                    .out = sum_bytes(call.receive_counts, unit)};
    case CollectiveKind::kBroadcast: {
      const bool root = rank == call.root;
      const std::size_t bytes = root ? call.in.size() : call.out.size();
      return Wanted{.in = root ? bytes : call.in.size(), .out = root ? call.out.size() : bytes};
    }
    case CollectiveKind::kBarrier:
      return Wanted{.in = call.in.size(), .out = call.out.size()};
  }
  return Wanted{};
}

bool sums(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kReduce;
}

bool aligned(const void* data, std::size_t unit) {
  return reinterpret_cast<std::uintptr_t>(data) % unit == 0;
}

/// Whether in and out share memory in a way that the collective does not allow.
bool overlap_wrongly(const Collective& call, unsigned rank) {
  const std::less<> before;
  const std::byte* in = call.in.data();
  const std::byte* out = call.out.data();
  if (call.in.empty() || call.out.empty()) return false;
  if (!before(in, out + call.out.size()) || !before(out, in + call.in.size())) return false;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return in != out;
    case CollectiveKind::kAllGather: {
      const std::size_t place = call.counts.empty()
                                    ? rank * call.in.size()
                                    : sum_bytes(call.counts.first(rank), size_of(call.type));
      return in != out + place;
    }
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kBarrier:
      return false;  // only one of the two is used
    default:
      return true;
  }
}

}  // namespace

Status check_collective(const Collective& call, unsigned rank, unsigned size) {
  const auto wrong = [&](const auto&... parts) {
    return Status::error(Code::kInvalidArgument, comm::call_name(call.kind, call.tensor),
                         " on rank ", rank, ": ", parts...);
  };
  if (call.root >= size) return wrong("root ", call.root, " in a group of ", size);
  if (!call.counts.empty() && call.counts.size() != size) {
    return wrong(call.counts.size(), " counts for ", size, " ranks");
  }
  if (!call.receive_counts.empty() && call.receive_counts.size() != size) {
    return wrong(call.receive_counts.size(), " receive counts for ", size, " ranks");
  }
  const auto wanted = wanted_sizes(call, rank, size);
  if (!wanted) return wrong(wanted.error().message());
  if (call.in.size() != wanted->in) {
    return wrong("wanted ", wanted->in, " B in, got ", call.in.size(), " B");
  }
  if (call.out.size() != wanted->out) {
    return wrong("wanted ", wanted->out, " B out, got ", call.out.size(), " B");
  }
  const std::size_t unit = size_of(call.type);
  if (call.in.size() % unit != 0 || call.out.size() % unit != 0) {
    return wrong(call.in.size(), " and ", call.out.size(), " B are no whole elements of ", unit,
                 " B");
  }
  if (sums(call.kind)) {
    if (call.type == DataType::kBytes) return wrong("bytes cannot be summed");
    if (!aligned(call.in.data(), unit) || !aligned(call.out.data(), unit)) {
      return wrong("buffers of ", type_name(call.type), " must be aligned to ", unit, " B");
    }
  }
  if (overlap_wrongly(call, rank)) return wrong("in and out overlap");
  if (call.timeout.count() < 0) return wrong("a timeout of ", call.timeout.count(), " ms");
  return {};
}

}  // namespace gradpress
