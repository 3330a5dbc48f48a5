#include "comm/agreement.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace gradpress::comm {

namespace {

bool has_root(CollectiveKind kind) {
  return kind == CollectiveKind::kGather || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kBroadcast;
}

/// Given counts, or the same for every rank.
void append_counts(std::span<const std::size_t> given, std::size_t each, unsigned size,
                   std::vector<std::size_t>& counts) {
  if (given.empty()) {
    counts.insert(counts.end(), size, each);
  } else {
    counts.insert(counts.end(), given.begin(), given.end());
  }
}

/// Mixes a number in; every bit of either changes about half of the bits (splitmix64).
std::uint64_t mixed(std::uint64_t hash, std::uint64_t number) {
  hash += number + 0x9E3779B97F4A7C15U;
  hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9U;
  hash = (hash ^ hash >> 27) * 0x94D049BB133111EBU;
  return hash ^ hash >> 31;
}

}  // namespace

void view_of(const Collective& call, unsigned rank, unsigned size, CallView& view) {
  const std::size_t unit = size_of(call.type);
  const std::size_t in = call.in.size() / unit;
  const std::size_t out = call.out.size() / unit;
  view.kind = call.kind;
  view.type = call.type;
  view.root = has_root(call.kind) ? call.root : 0;
  view.tensor.assign(call.tensor);
  view.counts.clear();
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduce:
      view.counts.push_back(in);
      break;
    case CollectiveKind::kBroadcast:
      view.counts.push_back(rank == call.root ? in : out);
      break;
    case CollectiveKind::kReduceScatter:
      append_counts(call.counts, out, size, view.counts);
      break;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      append_counts(call.counts, in, size, view.counts);
      break;
    case CollectiveKind::kAllToAll:
      append_counts(call.counts, in / size, size, view.counts);
      append_counts(call.receive_counts, out / size, size, view.counts);
      break;
    case CollectiveKind::kBarrier:
      view.type = DataType::kBytes;
      break;
  }
}

bool agree(const CallView& a, unsigned rank_a, const CallView& b, unsigned rank_b) {
  if (a.kind != b.kind || a.type != b.type || a.root != b.root || a.tensor != b.tensor) {
    return false;
  }
  if (a.kind != CollectiveKind::kAllToAll) return a.counts == b.counts;
  const std::size_t size = a.counts.size() / 2;
  return a.counts[rank_b] == b.counts[size + rank_a] && b.counts[rank_a] == a.counts[size + rank_b];
}

std::uint64_t pair_tag(const CallView& view, unsigned rank, unsigned other, std::uint64_t call) {
  std::uint64_t hash = mixed(call, static_cast<std::uint64_t>(view.kind));
  hash = mixed(hash, static_cast<std::uint64_t>(view.type));
  hash = mixed(hash, view.root);
  for (const char c : view.tensor) hash = mixed(hash, static_cast<unsigned char>(c));
  hash = mixed(hash, view.tensor.size());
  if (view.kind == CollectiveKind::kAllToAll) {
    // Of the counts only what goes between the two, in an order that both know.
    const std::size_t size = view.counts.size() / 2;
    const std::size_t sent = view.counts[other];
    const std::size_t received = view.counts[size + other];
    hash = mixed(hash, rank < other ? sent : received);
    return mixed(hash, rank < other ? received : sent);
  }
  for (const std::size_t count : view.counts) hash = mixed(hash, count);
  return hash;
}

std::string to_text(const CallView& view, unsigned other) {
  std::string text = call_name(view.kind, view.tensor);
  if (view.kind == CollectiveKind::kBarrier) return text;
  const auto add = [&text](const auto&... parts) { (detail::append(text, parts), ...); };
  const std::string_view type = type_name(view.type);
  if (view.kind == CollectiveKind::kAllToAll) {
    add(", ", view.counts[other], " ", type, " to rank ", other, " and ",
        view.counts[view.counts.size() / 2 + other], " from it");
  } else if (view.counts.size() == 1) {
    add(", ", view.counts[0], " ", type);
  } else {
    add(", ", std::accumulate(view.counts.begin(), view.counts.end(), std::size_t{0}), " ", type,
        " as ");
    for (std::size_t i = 0; i < view.counts.size(); ++i) add(i == 0 ? "" : "+", view.counts[i]);
  }
  if (has_root(view.kind)) add(", root ", view.root);
  return text;
}

Status check_subgroup(std::span<const unsigned> ranks, unsigned rank, unsigned size) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] >= size) {
      return Status::error(Code::kInvalidArgument, "sub-group: rank ", ranks[i], " in a group of ",
                           size);
    }
    if (std::ranges::find(ranks.first(i), ranks[i]) !=
        ranks.begin() + static_cast<std::ptrdiff_t>(i)) {
      return Status::error(Code::kInvalidArgument, "sub-group: rank ", ranks[i], " is named twice");
    }
  }
  if (std::ranges::find(ranks, rank) == ranks.end()) {
    return Status::error(Code::kInvalidArgument, "sub-group: rank ", rank,
                         " asks for a group it is not in");
  }
  return {};
}

std::string call_name(CollectiveKind kind, std::string_view tensor) {
  std::string text(collective_name(kind));
  if (!tensor.empty()) text.append(" of ").append(tensor);
  return text;
}

}  // namespace gradpress::comm
