// HiTopKComm: every tensor on the device, hierarchical, all-gather between machines.
#include "plan/search/isolated.h"
#include "plan/search/request.h"

namespace gradpress::plan {

Result<Strategy> plan_hitopk(const Request& request) {
  const auto option = parse_option(
      "reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@device > allgather@intra2");
  if (!option) return tl::unexpected(option.error());
  Request device = request;
  device.tree.host = false;
  return plan_uniform(device, *option);
}

}  // namespace gradpress::plan
