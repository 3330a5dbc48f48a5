// The groups of one worker that an option's phases run on.
#pragma once

#include <gradpress/group.h>
#include <gradpress/status.h>

#include <memory>

#include "comm/topology.h"
#include "plan/option.h"

namespace gradpress::sync {

/// Which lane a collective occupies.
enum class Link : std::uint8_t { kIntra, kInter };

/// One worker's ends: of all workers, of its machine's, and of those with its place in every
/// machine.
///
/// Order:   calls on one group run in the order of start(), which must be the same on its ranks.
/// Threads: as Group.
class Fabric {
 public:
  /// Makes the two sub-groups. Ranks are numbered machine by machine.
  /// Errors: kInvalidArgument when machines × workers is not the world's size; the group's own.
  static Result<Fabric> make(std::unique_ptr<Group> world, const comm::Topology& topology);

  const comm::Topology& topology() const { return topology_; }
  unsigned rank() const { return flat_->rank(); }
  /// The group of a phase; a group of one member exchanges nothing.
  Group& group(plan::Phase phase) const;
  /// With one machine everything is inside it.
  Link link(plan::Phase phase) const;
  /// Over all three groups.
  SentBytes sent_bytes() const;

 private:
  Fabric(std::unique_ptr<Group> flat, std::unique_ptr<Group> intra, std::unique_ptr<Group> inter,
         const comm::Topology& topology);

  std::unique_ptr<Group> flat_;
  std::unique_ptr<Group> intra_;
  std::unique_ptr<Group> inter_;
  comm::Topology topology_;
};

}  // namespace gradpress::sync
