// best, where payloads travel between machines only, beginning with an all-to-all.
#include <algorithm>

#include "plan/search/isolated.h"
#include "plan/search/request.h"

namespace gradpress::plan {

bool is_inter_alltoall(const Option& option) {
  const bool inter_only = std::ranges::all_of(option.actions(), [](const Action& action) {
    return !action.encoded || action.phase == Phase::kInter;
  });
  const bool has_alltoall = std::ranges::any_of(option.actions(), [](const Action& action) {
    return action.encoded && action.collective == Collective::kAllToAll;
  });
  return option.is_raw() || (inter_only && has_alltoall);
}

Result<Strategy> plan_inter_alltoall(const Request& request) {
  Request restricted = request;
  restricted.tree.accepts = is_inter_alltoall;
  return plan_best(restricted);
}

}  // namespace gradpress::plan
