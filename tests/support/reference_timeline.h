// The timeline once more, slowly and from its definition alone: what the planner's is compared
// with.
#pragma once

#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/strategy.h"
#include "plan/trace.h"

namespace gradpress::test {

struct ReferenceSpan {
  std::string lane;
  std::string what;  ///< "backward" or the action's text
  std::size_t tensor = 0;
  double start_us = 0.0;
  double end_us = 0.0;
};

struct ReferenceTimeline {
  std::vector<ReferenceSpan> spans;
  double iteration_us = 0.0;
};

/// Option texts are read word by word; nothing of the planner's costs or events is used.
/// Requires: an elementwise codec; the paper's tree.
ReferenceTimeline reference_timeline(const plan::Trace& trace, const plan::Cluster& cluster,
                                     const codec::Spec& codec,
                                     const std::vector<std::string>& options,
                                     const std::vector<std::uint32_t>& bucket_of_tensor);

}  // namespace gradpress::test
