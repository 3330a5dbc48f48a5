// best, where every encoded tensor is encoded for an all-to-all inside and for one between.
#include <algorithm>

#include "plan/search/isolated.h"
#include "plan/search/request.h"

namespace gradpress::plan {

bool is_alltoall_alltoall(const Option& option) {
  const auto encoded_alltoalls = std::ranges::count_if(option.actions(), [](const Action& action) {
    return action.encoded && action.collective == Collective::kAllToAll &&
           action.phase != Phase::kFlat;
  });
  return option.is_raw() || encoded_alltoalls == 2;
}

Result<Strategy> plan_alltoall_alltoall(const Request& request) {
  Request restricted = request;
  restricted.tree.accepts = is_alltoall_alltoall;
  return plan_best(restricted);
}

}  // namespace gradpress::plan
