// Local search along the critical path: only what decides the end is changed.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/search/walk.h"

namespace gradpress::plan {

struct RefineLimits {
  std::uint64_t tasks = 0;  ///< simulated tasks to spend, a budget that needs no clock
  double floor_us = 0.0;    ///< nothing is below: reaching it ends the search
  /// Per class, the candidates to consider; null: all of them.
  const std::vector<std::vector<std::uint16_t>>* only = nullptr;
};

/// Improves the walk's incumbent until no move of the neighbourhood helps, the budget is spent or
/// the floor is reached. Moves: one message, all messages of a class, and those of a class that are
/// on the critical path (all, the earlier or the later half), each to another candidate.
/// Returns whether the incumbent is a local optimum.
bool refine(Walk& walk, const RefineLimits& limits);

/// For local optima: every message to every candidate of its class, on the critical path or not. A
/// slower option of a message that is not on the path can let another one pass. Returns whether the
/// incumbent got better.
bool refine_everywhere(Walk& walk, const RefineLimits& limits);

/// Simulated annealing with a fixed sequence of random numbers: single messages, and all of a
/// class, to random candidates. Leaves the best strategy seen as the incumbent.
void anneal(Walk& walk, const RefineLimits& limits);

/// For local optima: two moves of the same neighbourhood at once, out of those that alone cost the
/// least. Returns whether such a pair was found and taken.
bool refine_by_pairs(Walk& walk, const RefineLimits& limits);

}  // namespace gradpress::plan
