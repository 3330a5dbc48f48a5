#include "sync/holdings.h"

#include <algorithm>
#include <utility>

namespace gradpress::sync {

namespace {

using plan::Action;
using plan::ActionKind;
using plan::Collective;
using plan::Phase;
using plan::Step;

/// Collectives after which a worker has only its shards.
bool shards_out(const Action& action) {
  return action.collective == Collective::kAllToAll ||
         action.collective == Collective::kReduceScatter;
}

bool in_range(const Block& block, const Holding& holding) {
  return block.shard >= holding.first && block.shard - holding.first < holding.count;
}

}  // namespace

Holdings::Holdings(const HoldingsInput& input)
    : option_(input.option), topology_(input.topology), as_vector_(!input.vector_elements.empty()) {
  walk(input);
  known_.resize(points_.size());
  for (auto& ranks : known_) ranks.resize(topology_.workers());
}

std::size_t Holdings::add(Partition partition) {
  partitions_.push_back(std::move(partition));
  return partitions_.size() - 1;
}

void Holdings::walk(const HoldingsInput& input) {
  points_.push_back({.partition = add(Partition::whole(input.elements))});
  unsigned encodes = 0;
  std::uint32_t held = 1;  // shards that a worker holds
  const auto actions = option_.actions();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    switch (action.kind) {
      case ActionKind::kComp: {
        Point next = after_comp(input, i);
        if (!points_.back().encoded) next.site = encodes++;
        held = next.made_shards;
        points_.push_back(next);
        break;
      }
      case ActionKind::kDecomp: {
        Point next = points_.back();
        next.encoded = false;
        next.partition = as_vector_ ? 0 : add(partitions_[next.partition].merged(held));
        held = 1;
        points_.push_back(next);
        break;
      }
      case ActionKind::kComm: {
        const std::uint32_t size = group_size(action.phase);
        if (action.encoded && shards_out(action)) held /= size;
        if (action.encoded && action.step == Step::kSecond &&
            action.collective == Collective::kAllGather) {
          held *= size;
        }
        points_.push_back(after_comm(i));
        break;
      }
    }
  }
}

Point Holdings::after_comp(const HoldingsInput& input, std::size_t action) {
  Point next = points_.back();
  next.round = next.encoded ? next.round + 1 : 0;
  // A second round encodes the worker's own gradient once more.
  if (next.round > 0) next.covers = 1;
  next.made_shards = 1;
  for (const Action& later : option_.actions().subspan(action + 1)) {
    if (later.kind != ActionKind::kComm) break;
    if (shards_out(later)) next.made_shards *= group_size(later.phase);
  }
  const Partition from = as_vector_ ? Partition::whole(input.vector_elements.subspan(next.round, 1))
                                    : partitions_[next.partition];
  next.encoded = true;
  next.partition = add(from.split(next.made_shards));
  return next;
}

Point Holdings::after_comm(std::size_t index) {
  const Action& action = option_.actions()[index];
  const std::uint32_t size = group_size(action.phase);
  Point next = points_.back();
  if (action.step != Step::kSecond) next.covers *= size;
  if (action.phase == Phase::kInter && action.step != Step::kFirst) next.replicated = true;
  if (action.encoded) return next;
  if (action.collective == Collective::kReduceScatter) {
    next.partition = add(partitions_[next.partition].split(size));
  } else if (action.collective == Collective::kAllGather) {
    next.partition = add(partitions_[next.partition].merged(size));
  }
  return next;
}

const Holding& Holdings::at(std::size_t index, unsigned rank) {
  std::optional<Holding>& known = known_[index][rank];
  if (!known) known = compute(index, rank);
  return *known;
}

Holding Holdings::compute(std::size_t index, unsigned rank) {
  if (index == 0) return {.source = rank};
  const Action& action = option_.actions()[index - 1];
  const Holding& before = at(index - 1, rank);
  Holding next{
      .idle = before.idle, .first = before.first, .count = before.count, .source = before.source};
  switch (action.kind) {
    case ActionKind::kComp:
      next.count = points_[index].made_shards;
      next.first = as_vector_ ? 0 : before.first * next.count;
      for (std::uint32_t i = 0; i < next.count && !next.idle; ++i) {
        next.blocks.push_back({.shard = next.first + i, .sender = rank});
      }
      break;
    case ActionKind::kDecomp:
      next.first = as_vector_ ? 0 : before.first / before.count;
      next.count = 1;
      break;
    case ActionKind::kComm: {
      const std::vector<unsigned> peers = group(action.phase, rank);
      const bool to_root =
          action.collective == Collective::kReduce || action.collective == Collective::kGather;
      if (to_root && peers.front() != rank) next.idle = true;
      if (action.collective == Collective::kBroadcast) {
        next.idle = at(index - 1, peers.front()).idle;
        next.source = at(index - 1, peers.front()).source;
      } else {
        for (const unsigned peer : peers) {
          next.source = std::min(next.source, at(index - 1, peer).source);
        }
      }
      if (action.encoded) {
        move_encoded(index, rank, next);
      } else {
        move_raw(action, rank, next);
      }
      break;
    }
  }
  return next;
}

void Holdings::move_raw(const Action& action, unsigned rank, Holding& holding) const {
  const unsigned size = group_size(action.phase);
  if (action.collective == Collective::kReduceScatter) {
    holding.first = holding.first * size + place(action.phase, rank);
  } else if (action.collective == Collective::kAllGather) {
    holding.first /= size;
  }
}

void Holdings::move_encoded(std::size_t index, unsigned rank, Holding& holding) {
  const Action& action = option_.actions()[index - 1];
  const std::vector<unsigned> peers = group(action.phase, rank);
  const auto size = static_cast<std::uint32_t>(peers.size());
  if (shards_out(action)) {
    holding.count /= size;
    holding.first += place(action.phase, rank) * holding.count;
  } else if (action.collective == Collective::kAllGather && action.step == Step::kSecond) {
    holding.count *= size;
    holding.first = holding.first / holding.count * holding.count;
  }
  if (holding.idle) return;
  const auto take = [&](unsigned from) {
    for (const Block& block : at(index - 1, from).blocks) {
      if (in_range(block, holding)) holding.blocks.push_back(block);
    }
  };
  switch (action.collective) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
    case Collective::kReduce:
      take(rank);
      break;
    case Collective::kAllGather:
    case Collective::kAllToAll:
    case Collective::kGather:
      for (const unsigned peer : peers) take(peer);
      break;
    case Collective::kBroadcast:
      take(peers.front());
      break;
  }
}

std::vector<unsigned> Holdings::group(Phase phase, unsigned rank) const {
  switch (phase) {
    case Phase::kIntra1:
    case Phase::kIntra2:
      return topology_.intra_ranks(rank);
    case Phase::kInter:
      return topology_.inter_ranks(rank);
    case Phase::kFlat:
      break;
  }
  std::vector<unsigned> all(topology_.workers());
  for (unsigned i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

unsigned Holdings::place(Phase phase, unsigned rank) const {
  switch (phase) {
    case Phase::kIntra1:
    case Phase::kIntra2:
      return rank % topology_.workers_per_machine;
    case Phase::kInter:
      return topology_.machine_of(rank);
    case Phase::kFlat:
      break;
  }
  return rank;
}

unsigned Holdings::group_size(Phase phase) const {
  switch (phase) {
    case Phase::kIntra1:
    case Phase::kIntra2:
      return topology_.workers_per_machine;
    case Phase::kInter:
      return topology_.machines;
    case Phase::kFlat:
      break;
  }
  return topology_.workers();
}

}  // namespace gradpress::sync
