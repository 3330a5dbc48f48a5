#include "plan/tree.h"

#include <algorithm>
#include <array>
#include <string>

#include "plan/grammar.h"

namespace gradpress::plan {

namespace {

bool allows(const Restrictions& restrictions, const Action& action) {
  if (action.kind != ActionKind::kComm) {
    return action.place == Place::kDevice ? restrictions.device : restrictions.host;
  }
  const auto has_bit = [](unsigned bits, auto value) {
    return (bits >> static_cast<unsigned>(value) & 1U) != 0;
  };
  return !has_bit(restrictions.forbidden_phases, action.phase) &&
         !has_bit(restrictions.forbidden_collectives, action.collective);
}

/// Calls `leaf(path)` for every path from a symbol, in the tree's order.
template <class Leaf>
class Walker {
 public:
  Walker(const Restrictions& restrictions, Leaf leaf)
      : restrictions_(restrictions), leaf_(std::move(leaf)) {
    // Productions of one symbol stand together: a range per symbol saves the search for them.
    const auto all = productions();
    for (std::size_t i = all.size(); i-- > 0;) {
      auto& range = ranges_[static_cast<std::size_t>(all[i].from)];
      if (range.end == 0) range.end = i + 1;
      range.begin = i;
    }
  }

  void walk(Symbol symbol, const PathState& state) {
    if (symbol == Symbol::kEnd) {
      leaf_(std::span<const Action>(path_.data(), depth_));
      return;
    }
    const Range range = ranges_[static_cast<std::size_t>(symbol)];
    for (std::size_t i = range.begin; i < range.end; ++i) terminals(productions()[i], 0, state);
  }

 private:
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  void terminals(const Production& production, std::size_t index, const PathState& state) {
    if (index == production.count) {
      walk(production.to, state);
      return;
    }
    const Terminal terminal = production.terminals[index];
    const bool sums = terminal == Terminal::kCommS || terminal == Terminal::kComm1S;
    if (sums && !restrictions_.extended) return;
    if (terminal == Terminal::kComp && encodes_ == restrictions_.max_encodes) return;
    const Choices allowed = choices(terminal, phase_of(production.from, state), state);
    encodes_ += terminal == Terminal::kComp ? 1 : 0;
    for (std::size_t i = 0; i < allowed.count; ++i) {
      const Action& action = allowed.actions[i];
      if (!allows(restrictions_, action)) continue;
      path_[depth_++] = action;
      terminals(production, index + 1, advance(state, terminal, action));
      --depth_;
    }
    encodes_ -= terminal == Terminal::kComp ? 1 : 0;
  }

  const Restrictions& restrictions_;
  Leaf leaf_;
  std::array<Range, 32> ranges_{};
  std::array<Action, Option::kMaxActions> path_{};
  std::size_t depth_ = 0;
  unsigned encodes_ = 0;
};

constexpr std::array kRoots = {Symbol::kFlat, Symbol::kHier, Symbol::kRoundsFlat,
                               Symbol::kRoundsHier};

std::uint64_t count_from(const Restrictions& restrictions, Symbol symbol, const PathState& state) {
  std::uint64_t count = 0;
  Walker walker(restrictions, [&count](std::span<const Action>) { ++count; });
  walker.walk(symbol, state);
  return count;
}

}  // namespace

Status forbid(Restrictions& restrictions, std::string_view word) {
  const auto bit = [](auto value) {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(value));
  };
  if (word == "device") {
    restrictions.device = false;
  } else if (word == "host") {
    restrictions.host = false;
  } else if (word == "intra") {
    restrictions.forbidden_phases |= bit(Phase::kIntra1) | bit(Phase::kIntra2);
  } else if (word == "inter") {
    restrictions.forbidden_phases |= bit(Phase::kInter) | bit(Phase::kFlat);
  } else if (word == "flat") {
    restrictions.forbidden_phases |= bit(Phase::kFlat);
  } else if (const auto collective = parse_collective(word)) {
    restrictions.forbidden_collectives |= bit(*collective);
  } else {
    return Status::error(Code::kInvalidArgument, "cannot forbid \"", word,
                         "\"; what can be forbidden: device, host, intra, inter, flat, allreduce, "
                         "reduce-scatter, reduce, allgather, broadcast, alltoall, gather");
  }
  return {};
}

OptionTree::OptionTree(const Restrictions& restrictions) {
  nodes_.reserve(restrictions.extended ? 32'768 : 12'288);
  std::array<std::uint32_t, Option::kMaxActions> open{};  // the nodes of the last path
  std::size_t open_count = 0;
  const auto close_to = [&](std::size_t depth) {
    while (open_count > depth) nodes_[open[--open_count]].after = nodes_.size();
  };
  Walker walker(restrictions, [&](std::span<const Action> path) {
    if (restrictions.accepts != nullptr && !restrictions.accepts(Option(path))) return;
    std::size_t shared = 0;
    while (shared < std::min(open_count, path.size()) &&
           nodes_[open[shared]].action == path[shared])
      ++shared;
    close_to(shared);
    for (std::size_t i = shared; i < path.size(); ++i) {
      const std::uint32_t parent = i == 0 ? kRoot : open[i - 1];
      open[open_count++] = static_cast<std::uint32_t>(nodes_.size());
      nodes_.push_back({.action = path[i], .parent = parent, .after = 0, .is_option = false});
    }
    nodes_[open[path.size() - 1]].is_option = true;
    ++size_;
  });
  for (const Symbol root : kRoots) walker.walk(root, PathState{});
  close_to(0);
}

Option OptionTree::option_at(std::uint32_t node) const {
  std::array<Action, Option::kMaxActions> reversed{};
  std::size_t count = 0;
  for (std::uint32_t at = node; at != kRoot; at = nodes_[at].parent) {
    reversed[count++] = nodes_[at].action;
  }
  std::reverse(reversed.begin(), reversed.begin() + static_cast<std::ptrdiff_t>(count));
  return Option(std::span<const Action>(reversed.data(), count));
}

std::vector<Option> OptionTree::options() const {
  std::vector<Option> all;
  all.reserve(size_);
  for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].is_option) all.push_back(option_at(node));
  }
  return all;
}

SubtreeCounts count_subtrees(const Restrictions& restrictions) {
  const PathState intra{.outer_phase = Phase::kIntra2};
  PathState encoded = intra;
  encoded.single = true;
  const auto count = [&](Symbol symbol, const PathState& state) {
    return count_from(restrictions, symbol, state);
  };
  return {
      .t1 = count(Symbol::kT1, intra),
      .t2 = count(Symbol::kT2, encoded),
      .t3 = count(Symbol::kT3, intra),
      .t4 = count(Symbol::kT4, encoded),
      .t5 = count(Symbol::kT5, intra),
      .flat = count(Symbol::kFlat, PathState{}),
      .hier = count(Symbol::kHier, PathState{}),
      .rounds = count(Symbol::kRoundsFlat, PathState{}) + count(Symbol::kRoundsHier, PathState{})};
}

}  // namespace gradpress::plan
