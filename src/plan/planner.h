// From files to a plan: strategy, buckets, prediction and verdict.
#pragma once

#include <gradpress/status.h>

#include <string>

#include "plan/policy.h"
#include "plan/search/request.h"
#include "plan/strategy.h"
#include "plan/timeline.h"

namespace gradpress::plan {

enum class Fusion : std::uint8_t {
  kNone,  ///< every tensor its own message: the paper's setting
  kAuto,  ///< buckets where they shorten the iteration
};

struct PlanOptions {
  std::string strategy = "best";
  Restrictions tree{};
  Policy policy{};
  Fusion fusion = Fusion::kNone;
};

struct Plan {
  std::string strategy_name;
  bool extended = false;  ///< the tree it was found in
  Strategy strategy;
  double iteration_us = 0.0;  ///< the mean of two steps where acpsgd alternates
  double bound_us = 0.0;      ///< over the tree and these buckets (docs/cost_model.md)
  double raw_us = 0.0;        ///< the best without a codec, with the same kind of buckets
  Timeline timeline;          ///< of the first step
  std::string verdict;        ///< one sentence
};

/// Errors: kInvalidArgument: unknown strategy, missing costs, a policy or restrictions that leave
/// nothing; codecs that only the extended tree can use, in the paper's.
Result<Plan> make_plan(const Setting& setting, const PlanOptions& options);

}  // namespace gradpress::plan
