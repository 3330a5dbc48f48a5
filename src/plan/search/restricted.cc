// The paper's crippled versions: sub-trees, each searched by best and by Espresso's own algorithm.
#include <algorithm>

#include "plan/search/best.h"
#include "plan/search/request.h"

namespace gradpress::plan {

namespace {

/// Payloads travel between machines only, and by all-gather. Raw options are in every sub-tree.
bool is_inter_allgather(const Option& option) {
  return std::ranges::all_of(option.actions(), [](const Action& action) {
    return !action.encoded || (action.phase == Phase::kInter && action.step == Step::kWhole);
  });
}

/// Payloads travel between machines only, beginning with an all-to-all.
bool is_inter_alltoall(const Option& option) {
  const bool inter_only = std::ranges::all_of(option.actions(), [](const Action& action) {
    return !action.encoded || action.phase == Phase::kInter;
  });
  const bool has_alltoall = std::ranges::any_of(option.actions(), [](const Action& action) {
    return action.encoded && action.collective == Collective::kAllToAll;
  });
  return option.is_raw() || (inter_only && has_alltoall);
}

/// Encoded for an all-to-all inside the machine and for one between machines.
bool is_alltoall_alltoall(const Option& option) {
  const auto encoded_alltoalls = std::ranges::count_if(option.actions(), [](const Action& action) {
    return action.encoded && action.collective == Collective::kAllToAll &&
           action.phase != Phase::kFlat;
  });
  return option.is_raw() || encoded_alltoalls == 2;
}

Request on_device(Request request) {
  request.tree.host = false;
  return request;
}

Request on_host(Request request) {
  request.tree.device = false;
  return request;
}

Request accepting(Request request, bool (*accepts)(const Option&)) {
  request.tree.accepts = accepts;
  return request;
}

}  // namespace

Result<Strategy> plan_device_only(const Request& request) {
  return search_sub_tree(on_device(request));
}
Result<Strategy> plan_host_only(const Request& request) {
  return search_sub_tree(on_host(request));
}
Result<Strategy> plan_inter_allgather(const Request& request) {
  return search_sub_tree(accepting(request, is_inter_allgather));
}
Result<Strategy> plan_inter_alltoall(const Request& request) {
  return search_sub_tree(accepting(request, is_inter_alltoall));
}
Result<Strategy> plan_alltoall_alltoall(const Request& request) {
  return search_sub_tree(accepting(request, is_alltoall_alltoall));
}

Result<Strategy> plan_espresso_device_only(const Request& request) {
  return plan_espresso(on_device(request));
}
Result<Strategy> plan_espresso_host_only(const Request& request) {
  return plan_espresso(on_host(request));
}
Result<Strategy> plan_espresso_inter_allgather(const Request& request) {
  return plan_espresso(accepting(request, is_inter_allgather));
}
Result<Strategy> plan_espresso_inter_alltoall(const Request& request) {
  return plan_espresso(accepting(request, is_inter_alltoall));
}
Result<Strategy> plan_espresso_alltoall_alltoall(const Request& request) {
  return plan_espresso(accepting(request, is_alltoall_alltoall));
}

}  // namespace gradpress::plan
