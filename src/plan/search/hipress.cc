// HiPress: on the device, between machines only, where that alone shortens the tensor's own time.
#include "plan/search/isolated.h"
#include "plan/search/request.h"

namespace gradpress::plan {

Result<Strategy> plan_hipress(const Request& request) {
  Request device = request;
  device.tree.host = false;
  return plan_isolated(device, is_inter_family);
}

}  // namespace gradpress::plan
