// The planner's own search, over any messages.
#pragma once

#include "plan/search/request.h"

namespace gradpress::plan {

/// How a search went, for the user and for tests.
struct SearchReport {
  double value_us = 0.0;  ///< forward included
  double bound_us = 0.0;  ///< by definition (docs/cost_model.md), with the messages searched
  double floor_us = 0.0;  ///< a sharper bound: no strategy of the tree is below it
  std::uint64_t tasks_run = 0;
};

/// The best strategy found with these buckets. Deterministic. `effort` scales the time it may take.
/// Errors: kInvalidArgument when costs are missing or the tree is empty.
Result<Strategy> search_best(const Request& request, const Buckets& buckets,
                             SearchReport* report = nullptr, double effort = 1.0);

/// The same without the exact search that ends it for a handful of messages.
Result<Strategy> search_heuristic(const Request& request, const Buckets& buckets,
                                  SearchReport& report, double effort = 1.0);

/// The search of a restricted strategy: a part of search_best, which runs it too. An exact end as
/// well, but nothing beside.
Result<Strategy> search_sub_tree(const Request& request);

/// Branch and bound over every option of every tensor (optimal.cc).
struct ExactResult {
  bool finished = false;        ///< false: `nodes` were used up, the choices may not be optimal
  std::vector<Choice> choices;  ///< better than the incumbent; empty when nothing is
  double strategies = 1.0;      ///< how many there are
  std::uint64_t nodes = 0;      ///< partial strategies looked at
};
ExactResult search_exact(const Request& request, double incumbent_us, std::uint64_t most_nodes);

}  // namespace gradpress::plan
