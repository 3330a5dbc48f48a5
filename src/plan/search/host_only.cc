// best, with codecs on the host only.
#include "plan/search/request.h"

namespace gradpress::plan {

Result<Strategy> plan_host_only(const Request& request) {
  Request host = request;
  host.tree.device = false;
  return plan_best(host);
}

}  // namespace gradpress::plan
