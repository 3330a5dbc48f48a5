// Espresso's published algorithm, with what it did on the way.
#pragma once

#include "plan/search/request.h"

namespace gradpress::plan {

struct EspressoReport {
  std::size_t offload_tensors = 0;  ///< encoded after the choice: what reaches the offload step
};

/// plan_espresso with its report, which may be null.
/// Errors: kInvalidArgument when costs are missing.
Result<Strategy> search_espresso(const Request& request, EspressoReport* report);

}  // namespace gradpress::plan
