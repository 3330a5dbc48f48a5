// Every tensor encoded: the quickest encoded option of each, whatever the others do.
#include "plan/search/isolated.h"
#include "plan/search/request.h"

namespace gradpress::plan {

Result<Strategy> plan_all(const Request& request) {
  return plan_isolated(request, [](const Option& option) { return !option.is_raw(); });
}

}  // namespace gradpress::plan
