// Between a user's plan and what the runtime runs.
#pragma once

#include <gradpress/plan.h>
#include <gradpress/status.h>

#include <cstdint>
#include <span>

#include "comm/topology.h"
#include "engine/program.h"

namespace gradpress::engine {

/// The programs of a plan; two where its steps have buckets or orders of their own. A tensor that
/// travels raw in a bucket of payloads goes beside them as it is.
/// Errors: kInvalidArgument: another world, a tensor that is missing, twice, or of another shape,
///         an option that does not parse, members of a bucket with different options, an order that
///         does not fit the messages.
Result<Programs> programs_of(const gradpress::Plan& plan, std::span<const TensorSpec> tensors,
                             const comm::Topology& topology, std::uint64_t seed);

/// The plan that programs_of() makes these of. Names and times are left to the caller.
gradpress::Plan plan_of(const Programs& programs, std::span<const TensorSpec> tensors,
                        const comm::Topology& topology);

}  // namespace gradpress::engine
