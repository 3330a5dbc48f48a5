// The format gradpress-plan-1, read for one target.
#pragma once

#include <gradpress/plan.h>

#include <string_view>

#include "base/json.h"

namespace gradpress::plan {

inline constexpr std::string_view kPlanFormat = "gradpress-plan-1";

/// `hash` of a plan written by hand, that is not bound to one model or world.
inline constexpr std::string_view kAnyTarget = "any";

/// Errors: as load_plan.
Result<gradpress::Plan> plan_from_json(const Json& json, std::string_view file,
                                       const PlanTarget& target);

}  // namespace gradpress::plan
