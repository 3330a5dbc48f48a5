// best, where payloads travel between machines only, and by all-gather.
#include <algorithm>

#include "plan/search/isolated.h"
#include "plan/search/request.h"

namespace gradpress::plan {

bool is_inter_allgather(const Option& option) {
  return std::ranges::all_of(option.actions(), [](const Action& action) {
    return !action.encoded || (action.phase == Phase::kInter && action.step == Step::kWhole);
  });
}

Result<Strategy> plan_inter_allgather(const Request& request) {
  Request restricted = request;
  restricted.tree.accepts = is_inter_allgather;
  return plan_best(restricted);
}

}  // namespace gradpress::plan
