// Strategies that look at one tensor at a time: each takes its quickest option of a family.
#pragma once

#include <vector>

#include "plan/search/request.h"

namespace gradpress::plan {

using Family = bool (*)(const Option& option);

/// Hierarchical, whole shards inside a machine, payloads only between machines: what HiPress and
/// BytePS-Compress choose from. Raw options of that shape are in it.
bool is_inter_family(const Option& option);
/// reduce-scatter, all-reduce between machines, all-gather.
Option raw_hierarchical();

/// For every tensor the option of the family with the least time of its own, ties by the tree's
/// order. Tensors for which the family has nothing that fits take the quickest raw option of it,
/// or raw_hierarchical.
Result<Strategy> plan_isolated(const Request& request, Family family);

/// The choice of one shape: what plan_isolated gives each tensor.
Choice isolated_choice(const Setting& setting, const CommCosts& comm,
                       std::span<const Option> family, const Shape& shape,
                       std::uint32_t allowed_codecs);

/// The same choice for all tensors that may use it, raw_hierarchical for the others.
Result<Strategy> plan_uniform(const Request& request, const Option& option);

}  // namespace gradpress::plan
