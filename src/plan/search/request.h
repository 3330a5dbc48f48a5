// What a strategy is asked for, and the names under which strategies are known.
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/candidates.h"
#include "plan/strategy.h"
#include "plan/tree.h"

namespace gradpress::plan {

struct Request {
  Setting setting;
  Restrictions tree;
  /// Per tensor, bit i: setting.codecs[i] may be used. Empty: every codec for every tensor.
  std::span<const std::uint32_t> allowed_codecs{};

  std::uint32_t allowed(std::size_t tensor) const {
    return allowed_codecs.empty() ? ~0U : allowed_codecs[tensor];
  }
};

struct NamedStrategy {
  std::string_view name;
  std::string_view about;
  Result<Strategy> (*plan)(const Request& request);
};

/// All of them; `best`, the default, comes first.
std::span<const NamedStrategy> strategies();
/// Errors: kInvalidArgument, listing the names.
Result<const NamedStrategy*> find_strategy(std::string_view name);

/// Whether the cluster has costs for every codec at every place the tree leaves.
/// Errors: kInvalidArgument, naming codec, place and what to do.
Status check_costs(const Request& request);

// One file each, of the same name; the last ones in restricted.cc.
Result<Strategy> plan_best(const Request& request);
Result<Strategy> plan_espresso(const Request& request);
Result<Strategy> plan_optimal(const Request& request);
Result<Strategy> plan_none(const Request& request);
Result<Strategy> plan_hipress(const Request& request);
Result<Strategy> plan_hitopk(const Request& request);
Result<Strategy> plan_byteps_compress(const Request& request);
Result<Strategy> plan_all(const Request& request);
Result<Strategy> plan_myopic(const Request& request);
Result<Strategy> plan_device_only(const Request& request);
Result<Strategy> plan_host_only(const Request& request);
Result<Strategy> plan_inter_allgather(const Request& request);
Result<Strategy> plan_inter_alltoall(const Request& request);
Result<Strategy> plan_alltoall_alltoall(const Request& request);
Result<Strategy> plan_espresso_device_only(const Request& request);
Result<Strategy> plan_espresso_host_only(const Request& request);
Result<Strategy> plan_espresso_inter_allgather(const Request& request);
Result<Strategy> plan_espresso_inter_alltoall(const Request& request);
Result<Strategy> plan_espresso_alltoall_alltoall(const Request& request);

}  // namespace gradpress::plan
