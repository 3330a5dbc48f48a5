// FP32: no codec, hierarchical all-reduce.
#include "plan/search/isolated.h"
#include "plan/search/request.h"

namespace gradpress::plan {

Result<Strategy> plan_none(const Request& request) {
  const std::size_t tensors = request.setting.trace.tensors.size();
  return Strategy{.choices = std::vector<Choice>(tensors, Choice{.option = raw_hierarchical()}),
                  .buckets = Buckets::singles(tensors)};
}

}  // namespace gradpress::plan
