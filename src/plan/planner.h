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
  /// With kAuto: of the bucketings whose predictions are above the least by at most this share, the
  /// one with the fewest messages is taken. No cost model has what a message costs the processor.
  double alike = 0.0;
  /// With kAuto: codecs that save less than this share of an iteration are not used.
  double least_gain = 0.0;
};

struct Plan {
  std::string strategy_name;
  bool extended = false;  ///< the tree it was found in
  Strategy strategy;
  double iteration_us = 0.0;  ///< the mean of two steps where acpsgd alternates
  double bound_us = 0.0;      ///< of every plan in this tree with this fusion (docs/cost_model.md)
  double raw_us = 0.0;        ///< the best without a codec, with the same kind of buckets
  Timeline timeline;          ///< of the first step
  std::string verdict;        ///< one sentence
  std::vector<std::string> warnings;  ///< where predictions rest on costs that nobody measured
};

/// Errors: kInvalidArgument: unknown strategy, missing costs, a policy or restrictions that leave
/// nothing; codecs that only the extended tree can use, in the paper's.
Result<Plan> make_plan(const Setting& setting, const PlanOptions& options);

}  // namespace gradpress::plan
