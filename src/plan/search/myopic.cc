// No interactions: each tensor takes the option that is quickest for it alone.
#include "plan/search/isolated.h"
#include "plan/search/request.h"

namespace gradpress::plan {

Result<Strategy> plan_myopic(const Request& request) {
  return plan_isolated(request, [](const Option&) { return true; });
}

}  // namespace gradpress::plan
