// best, with codecs on the device only.
#include "plan/search/request.h"

namespace gradpress::plan {

Result<Strategy> plan_device_only(const Request& request) {
  Request device = request;
  device.tree.host = false;
  return plan_best(device);
}

}  // namespace gradpress::plan
