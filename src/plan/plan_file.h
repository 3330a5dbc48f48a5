// Plans as files: between the planner's strategy, the public value and JSON.
#pragma once

#include <gradpress/plan.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "plan/planner.h"

namespace gradpress::plan {

PlanTarget target_of(const Trace& trace, const Topology& topology);

/// The planner's result as a user's value.
gradpress::Plan public_plan(const Setting& setting, const Plan& plan);

/// The format gradpress-plan-1.
Json to_json(const gradpress::Plan& plan);
/// The same with the further fields of the command line: codec, bound_us, raw_us, exposed times.
Json to_json(const Setting& setting, const Plan& plan);

/// A plan read back for simulation.
struct PlanFile {
  std::vector<codec::Spec> codecs;
  Strategy strategy;
};
/// Errors: those of load_plan, and a place for which the cluster has no costs of the codec.
Result<PlanFile> read_plan(const std::string& file, const Trace& trace, const Cluster& cluster);

}  // namespace gradpress::plan
