#include "plan/search/walk.h"

#include <algorithm>

namespace gradpress::plan {

namespace {

/// A gain below this is rounding: no move is taken for it.
constexpr double kGainUs = 1e-3;

}  // namespace

Walk::Walk(SearchSpace& space)
    : space_(space),
      simulator_(space.setting().trace, space.buckets()),
      picks_(space.messages(), 0),
      chains_(space.messages(), nullptr) {
  if (space.fused()) leads_.resize(space.setting().trace.tensors.size());
}

void Walk::set(std::uint32_t message, std::uint16_t candidate) {
  const auto& candidates = space_.class_of(message).candidates;
  const Candidate& now = candidates[candidate];
  if (chains_[message] != nullptr) {
    const Candidate& old = candidates[picks_[message]];
    for (std::size_t lane = 0; lane < kLanes; ++lane) loads_[lane] -= old.loads[lane];
  }
  for (std::size_t lane = 0; lane < kLanes; ++lane) loads_[lane] += now.loads[lane];
  picks_[message] = candidate;
  chains_[message] = &now.chain;
  if (leads_.empty()) return;
  for (const std::uint32_t tensor : space_.members(message)) {
    leads_[tensor] = space_.lead(tensor, now);
  }
}

Work Walk::work() const { return {.chains = chains_, .leads = leads_, .loads = loads_}; }

bool Walk::hopeless(double limit) const {
  // The device also runs backward; a link cannot start before the first gradient is ready.
  if (loads_[0] + simulator_.backward_us() >= limit) return true;
  const double first = simulator_.ready_us().front();
  return std::max({loads_[1], loads_[2], loads_[3]}) + first >= limit;
}

void Walk::restart(std::span<const std::uint16_t> picks) {
  // Candidates may have been added since: every pointer is taken anew, every sum made afresh.
  std::ranges::fill(chains_, nullptr);
  loads_ = {};
  for (std::uint32_t message = 0; message < picks.size(); ++message) set(message, picks[message]);
  value_ = simulator_.run(work());
}

double Walk::value_of(std::span<const std::uint16_t> picks, double limit) {
  undo_.clear();
  std::size_t first = space_.setting().trace.tensors.size();
  for (std::uint32_t message = 0; message < picks.size(); ++message) {
    if (picks[message] == picks_[message]) continue;
    undo_.push_back({message, picks_[message]});
    first = std::min<std::size_t>(first, space_.members(message).front());
    set(message, picks[message]);
  }
  double value = value_;
  if (!undo_.empty()) {
    value = Simulator::kNever;
    if (!hopeless(limit)) value = simulator_.probe(work(), first, limit);
  }
  for (const Move& move : undo_) set(move.message, move.candidate);
  if (value < limit) return value;
  return Simulator::kNever;
}

double Walk::value_after(std::span<const Move> moves, double limit) {
  undo_.clear();
  std::size_t first = space_.setting().trace.tensors.size();
  for (const Move& move : moves) {
    if (picks_[move.message] == move.candidate) continue;
    undo_.push_back({move.message, picks_[move.message]});
    first = std::min<std::size_t>(first, space_.members(move.message).front());
    set(move.message, move.candidate);
  }
  double value = Simulator::kNever;
  if (!undo_.empty() && !hopeless(limit)) value = simulator_.probe(work(), first, limit);
  for (const Move& move : undo_) set(move.message, move.candidate);
  if (value < limit) return value;
  return Simulator::kNever;
}

void Walk::take(std::span<const Move> moves) {
  std::size_t first = space_.setting().trace.tensors.size();
  for (const Move& move : moves) {
    first = std::min<std::size_t>(first, space_.members(move.message).front());
    set(move.message, move.candidate);
  }
  value_ = simulator_.rerun(work(), first);
}

bool Walk::improve(std::span<const Move> moves) {
  if (value_after(moves, value_ - kGainUs) == Simulator::kNever) return false;
  take(moves);
  return true;
}

Strategy Walk::strategy() const {
  Strategy strategy{.choices = {}, .buckets = space_.buckets()};
  strategy.choices.resize(space_.setting().trace.tensors.size());
  for (std::uint32_t message = 0; message < picks_.size(); ++message) {
    const Choice& choice = space_.class_of(message).candidates[picks_[message]].choice;
    for (const std::uint32_t tensor : space_.members(message)) strategy.choices[tensor] = choice;
  }
  return strategy;
}

}  // namespace gradpress::plan
