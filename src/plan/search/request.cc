#include "plan/search/request.h"

#include <algorithm>
#include <array>
#include <string>

#include "spec/facts.h"

namespace gradpress::plan {

namespace {

constexpr std::array kStrategies = {
    NamedStrategy{"best", "the planner's own search over the whole tree", plan_best},
    NamedStrategy{"espresso", "the published greedy: device options, then offload by groups",
                  plan_espresso},
    NamedStrategy{"none", "no codec: hierarchical all-reduce", plan_none},
    NamedStrategy{"hipress", "device codec between machines, where it helps the tensor alone",
                  plan_hipress},
    NamedStrategy{"hitopk", "every tensor: device codec, all-gather between machines", plan_hitopk},
    NamedStrategy{"byteps-compress", "host codec between machines from 2^16 bytes",
                  plan_byteps_compress},
    NamedStrategy{"all", "every tensor encoded, by its time alone", plan_all},
    NamedStrategy{"myopic", "each tensor by its time alone", plan_myopic},
    NamedStrategy{"device-only", "best, with codecs on the device only", plan_device_only},
    NamedStrategy{"host-only", "best, with codecs on the host only", plan_host_only},
    NamedStrategy{"inter-allgather", "best, encoding for an all-gather between machines only",
                  plan_inter_allgather},
    NamedStrategy{"inter-alltoall", "best, encoding for an all-to-all between machines only",
                  plan_inter_alltoall},
    NamedStrategy{"alltoall-alltoall", "best, encoding for all-to-all inside and between",
                  plan_alltoall_alltoall},
    NamedStrategy{"espresso@device-only", "espresso without its offload step",
                  plan_espresso_device_only},
    NamedStrategy{"espresso@host-only", "espresso, with codecs on the host only",
                  plan_espresso_host_only},
    NamedStrategy{"espresso@inter-allgather",
                  "espresso, encoding for an all-gather between machines only",
                  plan_espresso_inter_allgather},
    NamedStrategy{"espresso@inter-alltoall",
                  "espresso, encoding for an all-to-all between machines only",
                  plan_espresso_inter_alltoall},
    NamedStrategy{"espresso@alltoall-alltoall",
                  "espresso, encoding for all-to-all inside and between",
                  plan_espresso_alltoall_alltoall},
    NamedStrategy{"optimal", "exact, for a few tensors", plan_optimal},
};

}  // namespace

std::span<const NamedStrategy> strategies() { return kStrategies; }

Result<const NamedStrategy*> find_strategy(std::string_view name) {
  const auto* const found = std::ranges::find(kStrategies, name, &NamedStrategy::name);
  if (found != kStrategies.end()) return found;
  std::string names;
  for (const NamedStrategy& known : kStrategies) {
    names.append(names.empty() ? "" : ", ").append(known.name);
  }
  return fail(Code::kInvalidArgument, "unknown strategy \"", name, "\"; known are ", names);
}

Status check_costs(const Request& request) {
  for (const codec::Spec& spec : request.setting.codecs) {
    if (!codec::facts_of(spec).encodes()) continue;
    if (const Status known = request.setting.cluster.check_codec(spec); !known) return known;
    for (const Place place : {Place::kDevice, Place::kHost}) {
      const bool wanted = place == Place::kDevice ? request.tree.device : request.tree.host;
      if (!wanted || request.setting.cluster.costs(spec, place) != nullptr) continue;
      return Status::error(Code::kInvalidArgument, "cluster ", request.setting.cluster.name,
                           ": codec ", codec::to_text(spec), " has no costs on the ",
                           to_text(place), "; add codec_costs.", codec::to_text(spec), ".",
                           to_text(place), " or forbid the place (--forbid ", to_text(place), ")");
    }
  }
  return {};
}

}  // namespace gradpress::plan
