#include "plan/search/refine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <unordered_set>
#include <vector>

#include "plan/timeline.h"

namespace gradpress::plan {

namespace {

/// Close enough to the floor: a ten-thousandth.
constexpr double kCloseEnough = 1.0 + 1e-4;

/// Moves that lengthen the iteration by more are not worth a partner.
constexpr double kNearlyAsGood = 1.02;
constexpr std::size_t kPaired = 24;

/// Which lanes the critical path uses, and for which messages.
struct Critical {
  std::vector<std::uint8_t> lanes_of_message;  ///< bit Lane
  std::uint8_t lanes = 0;
};

Critical analyse(Walk& walk) {
  Critical critical{.lanes_of_message = std::vector<std::uint8_t>(walk.space().messages(), 0)};
  const std::span<const Span> spans = walk.spans();
  for (const std::uint32_t index : critical_path(spans)) {
    const Span& span = spans[index];
    const auto bit = static_cast<std::uint8_t>(1U << static_cast<unsigned>(span.lane));
    critical.lanes |= bit;
    if (span.kind != SpanKind::kBackward) critical.lanes_of_message[span.message] |= bit;
  }
  return critical;
}

/// A group of messages of one class that would all change to one candidate.
struct Trial {
  double gain_us;  ///< an estimate: what the path's lanes lose
  std::uint32_t message_class;
  std::uint32_t begin, count;  ///< in the list of messages
  std::uint16_t candidate;
  std::uint16_t from;
  bool late;  ///< the latest of the group, not the earliest

  /// The same trial after another move was taken has the same name.
  std::uint64_t name() const {
    return (std::uint64_t{message_class} << 40) ^ (std::uint64_t{from} << 28) ^
           (std::uint64_t{candidate} << 16) ^ (std::uint64_t{count} << 1) ^ (late ? 1U : 0U);
  }
};

constexpr double kNoUse = -1e300;

/// What changing a message is hoped to gain: time it gives up where it is on the path, less time
/// it adds to any lane of the path. kNoUse when it gives up none.
double estimate(const Candidate& from, const Candidate& to, std::uint8_t own, std::uint8_t all) {
  double less = 0.0;
  double more = 0.0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const double change = to.loads[lane] - from.loads[lane];
    if (change < 0.0 && (own >> lane & 1U) != 0) less -= change;
    if (change > 0.0 && (all >> lane & 1U) != 0) more += change;
  }
  return less > 0.0 ? less - more : kNoUse;
}

class Neighbourhood {
 public:
  Neighbourhood(Walk& walk, const Critical& critical, const RefineLimits& limits)
      : walk_(walk), only_(limits.only) {
    const auto classes = walk.space().classes();
    for (std::uint32_t i = 0; i < classes.size(); ++i) add_class(i, classes[i], critical);
    std::ranges::sort(trials_, [](const Trial& a, const Trial& b) {
      if (a.gain_us != b.gain_us) return a.gain_us > b.gain_us;
      if (a.message_class != b.message_class) return a.message_class < b.message_class;
      if (a.candidate != b.candidate) return a.candidate < b.candidate;
      return a.begin != b.begin ? a.begin < b.begin : a.count < b.count;
    });
  }

  std::span<const Trial> trials() const { return trials_; }
  std::span<const Walk::Move> moves(const Trial& trial) {
    moves_.clear();
    for (std::uint32_t i = 0; i < trial.count; ++i) {
      moves_.push_back({messages_[trial.begin + i], trial.candidate});
    }
    return moves_;
  }

 private:
  /// Messages of a class with the same candidate are alike but for their time: only how many
  /// change matters, and whether these are the earliest or the latest.
  void add_class(std::uint32_t index, const MessageClass& message_class, const Critical& critical) {
    picks_.clear();
    for (const std::uint32_t message : message_class.messages) {
      const std::uint16_t pick = walk_.picks()[message];
      if (critical.lanes_of_message[message] == 0) continue;
      if (std::ranges::find(picks_, pick) == picks_.end()) picks_.push_back(pick);
    }
    for (const std::uint16_t pick : picks_) add_group(index, message_class, pick, critical);
  }

  void add_group(std::uint32_t index, const MessageClass& message_class, std::uint16_t pick,
                 const Critical& critical) {
    const auto begin = static_cast<std::uint32_t>(messages_.size());
    std::uint8_t lanes = 0;
    for (const std::uint32_t message : message_class.messages) {
      if (walk_.picks()[message] != pick || critical.lanes_of_message[message] == 0) continue;
      messages_.push_back(message);
      lanes |= critical.lanes_of_message[message];
    }
    const auto count = static_cast<std::uint32_t>(messages_.size()) - begin;
    const auto all_begin = static_cast<std::uint32_t>(messages_.size());
    const auto all = static_cast<std::uint32_t>(message_class.messages.size());
    if (all > count) {
      messages_.insert(messages_.end(), message_class.messages.begin(),
                       message_class.messages.end());
    }
    const auto& candidates = message_class.candidates;
    const std::size_t choices = only_ == nullptr ? candidates.size() : (*only_)[index].size();
    for (std::size_t choice = 0; choice < choices; ++choice) {
      const auto to =
          only_ == nullptr ? static_cast<std::uint16_t>(choice) : (*only_)[index][choice];
      const double gain = estimate(candidates[pick], candidates[to], lanes, critical.lanes);
      if (gain == kNoUse) continue;
      for (std::uint32_t q = 1; q < count; q *= 2) {
        trials_.push_back({gain * q, index, begin, q, to, pick, false});
        trials_.push_back({gain * q, index, begin + count - q, q, to, pick, true});
      }
      trials_.push_back({gain * count, index, begin, count, to, pick, false});
      if (all > count)
        trials_.push_back({gain * count * 0.999, index, all_begin, all, to, pick, true});
    }
  }

  Walk& walk_;
  const std::vector<std::vector<std::uint16_t>>* only_;
  std::vector<std::uint32_t> messages_;
  std::vector<std::uint16_t> picks_;
  std::vector<Trial> trials_;
  std::vector<Walk::Move> moves_;
};

}  // namespace

bool refine(Walk& walk, const RefineLimits& limits) {
  const std::uint64_t end = walk.tasks_run() + limits.tasks;
  // What failed once mostly fails again: it comes last in the next round.
  std::unordered_set<std::uint64_t> failed;
  std::vector<std::uint64_t> fresh;
  for (;;) {
    if (walk.value_us() <= limits.floor_us * kCloseEnough) return true;
    Neighbourhood neighbourhood(walk, analyse(walk), limits);
    bool moved = false;
    for (const bool again : {false, true}) {
      for (const Trial& trial : neighbourhood.trials()) {
        if (walk.tasks_run() >= end) return false;
        const auto known = failed.find(trial.name());
        if ((known != failed.end()) != again) continue;
        moved = walk.improve(neighbourhood.moves(trial));
        if (moved) break;
        if (!again) fresh.push_back(trial.name());
      }
      if (moved) break;
    }
    failed.insert(fresh.begin(), fresh.end());
    fresh.clear();
    if (!moved) return true;
  }
}

bool refine_everywhere(Walk& walk, const RefineLimits& limits) {
  const std::uint64_t end = walk.tasks_run() + limits.tasks;
  const std::uint32_t messages = walk.space().messages();
  bool improved = false;
  // Ends after a whole round without a gain, wherever it began.
  std::uint32_t idle = 0;
  for (std::uint32_t message = 0; idle < messages; message = (message + 1) % messages) {
    ++idle;
    const std::size_t count = walk.space().class_of(message).candidates.size();
    for (std::uint16_t candidate = 0; candidate < count; ++candidate) {
      if (walk.tasks_run() >= end || walk.value_us() <= limits.floor_us * kCloseEnough) {
        return improved;
      }
      const std::array<Walk::Move, 1> move = {{{message, candidate}}};
      if (!walk.improve(move)) continue;
      improved = true;
      idle = 0;
    }
  }
  return improved;
}

void anneal(Walk& walk, const RefineLimits& limits) {
  // Of the iteration: what a move may cost at the beginning, and at the end.
  constexpr double kHot = 1e-2;
  constexpr double kCold = 1e-5;
  const std::uint64_t begin = walk.tasks_run();
  const std::uint64_t end = begin + limits.tasks;
  const std::uint32_t messages = walk.space().messages();
  std::vector<std::uint16_t> best(walk.picks().begin(), walk.picks().end());
  double best_us = walk.value_us();
  std::mt19937_64 random(messages);
  const auto uniform = [&random] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  std::vector<Walk::Move> moves;
  // Moves that loads alone rule out cost no simulation, but time.
  constexpr std::uint64_t kMoveTasks = 4;
  for (std::uint64_t tried = 0;
       walk.tasks_run() + kMoveTasks * tried < end && best_us > limits.floor_us * kCloseEnough;
       ++tried) {
    const double part =
        static_cast<double>(walk.tasks_run() - begin) / static_cast<double>(limits.tasks);
    const double heat = best_us * kHot * std::pow(kCold / kHot, part);
    const auto message = static_cast<std::uint32_t>(random() % messages);
    const MessageClass& of = walk.space().class_of(message);
    const auto candidate = static_cast<std::uint16_t>(random() % of.candidates.size());
    moves.clear();
    if (of.messages.size() > 1 && random() % 8 == 0) {
      for (const std::uint32_t other : of.messages) moves.push_back({other, candidate});
    } else {
      moves.push_back({message, candidate});
    }
    const double limit = walk.value_us() - heat * std::log(uniform());
    if (walk.value_after(moves, limit) == Simulator::kNever) continue;
    walk.take(moves);
    if (walk.value_us() >= best_us) continue;
    best_us = walk.value_us();
    best.assign(walk.picks().begin(), walk.picks().end());
  }
  walk.restart(best);
}

bool refine_by_pairs(Walk& walk, const RefineLimits& limits) {
  struct Scored {
    double value;
    std::vector<Walk::Move> moves;
  };
  const std::uint64_t end = walk.tasks_run() + limits.tasks;
  Neighbourhood neighbourhood(walk, analyse(walk), limits);
  std::vector<Scored> scored;
  for (const Trial& trial : neighbourhood.trials()) {
    if (walk.tasks_run() >= end) return false;
    const auto moves = neighbourhood.moves(trial);
    const double value = walk.value_after(moves, walk.value_us() * kNearlyAsGood);
    if (value != Simulator::kNever) scored.push_back({value, {moves.begin(), moves.end()}});
  }
  std::ranges::stable_sort(scored, {}, &Scored::value);
  scored.resize(std::min(scored.size(), kPaired));
  std::vector<Walk::Move> both;
  for (std::size_t a = 0; a < scored.size(); ++a) {
    for (std::size_t b = a + 1; b < scored.size(); ++b) {
      if (walk.tasks_run() >= end) return false;
      // Where both change a message, the second decides: another trial, and a good one.
      both = scored[a].moves;
      for (const Walk::Move& move : scored[b].moves) {
        const auto same = std::ranges::find(both, move.message, &Walk::Move::message);
        if (same == both.end()) {
          both.push_back(move);
        } else {
          same->candidate = move.candidate;
        }
      }
      if (walk.improve(both)) return true;
    }
  }
  return false;
}

}  // namespace gradpress::plan
