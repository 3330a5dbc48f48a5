#include "sync/fabric.h"

#include <utility>
#include <vector>

namespace gradpress::sync {

Fabric::Fabric(std::unique_ptr<Group> flat, std::unique_ptr<Group> intra,
               std::unique_ptr<Group> inter, const comm::Topology& topology)
    : flat_(std::move(flat)),
      intra_(std::move(intra)),
      inter_(std::move(inter)),
      topology_(topology) {}

Result<Fabric> Fabric::make(std::unique_ptr<Group> world, const comm::Topology& topology) {
  if (world == nullptr) return fail(Code::kInvalidArgument, "fabric: wanted a group, got none");
  if (topology.workers() != world->size()) {
    return fail(Code::kInvalidArgument, "fabric: ", topology.machines, " machines of ",
                topology.workers_per_machine, " workers are ", topology.workers(),
                ", the group has ", world->size());
  }
  const unsigned rank = world->rank();
  auto intra = world->subgroup(topology.intra_ranks(rank));
  if (!intra) return tl::unexpected(intra.error());
  auto inter = world->subgroup(topology.inter_ranks(rank));
  if (!inter) return tl::unexpected(inter.error());
  return Fabric(std::move(world), std::move(*intra), std::move(*inter), topology);
}

Group& Fabric::group(plan::Phase phase) const {
  switch (phase) {
    case plan::Phase::kFlat:
      return *flat_;
    case plan::Phase::kIntra1:
    case plan::Phase::kIntra2:
      return *intra_;
    case plan::Phase::kInter:
      return *inter_;
  }
  return *flat_;
}

Link Fabric::link(plan::Phase phase) const {
  const bool inside = phase == plan::Phase::kIntra1 || phase == plan::Phase::kIntra2;
  return inside || topology_.machines == 1 ? Link::kIntra : Link::kInter;
}

SentBytes Fabric::sent_bytes() const {
  SentBytes all;
  for (const Group* group : {flat_.get(), intra_.get(), inter_.get()}) {
    const SentBytes sent = group->sent_bytes();
    all.intra += sent.intra;
    all.inter += sent.inter;
  }
  return all;
}

}  // namespace gradpress::sync
