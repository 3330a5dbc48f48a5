// The processes of one world find together: store, roll call and watch.
#pragma once

#include <gradpress/status.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "comm/process.h"
#include "comm/store/client.h"
#include "comm/store/server.h"
#include "comm/watch.h"

namespace gradpress::comm {

/// What all groups of one world in one process share; the last of them destroys it.
struct Meeting {
  ProcessWorld world = {};
  std::string job = {};                             ///< the world's place in the store
  std::unique_ptr<store::StoreServer> server = {};  ///< where this process hosts it
  std::unique_ptr<store::StoreClient> store = {};
  std::shared_ptr<Watch> watch = {};  ///< last: it takes leave first
};

struct MeetingOptions {
  ProcessWorld world = {};
  std::string name = {};
  std::string backend = {};
  std::chrono::milliseconds patience{0};
  std::unique_ptr<store::StoreServer> server = {};  ///< where this process hosts it already
};

/// Hosts the store if it is this process's part, and waits until every rank has come.
/// Errors: as connect_world.
Result<std::shared_ptr<Meeting>> meet(MeetingOptions options);

struct SubgroupOptions {
  std::string parent = {};                 ///< the name of the group it is made from
  std::span<const unsigned> members = {};  ///< world ranks, in the sub-group's order
  unsigned asked = 0;  ///< how often the parent made one of these members before
  std::chrono::milliseconds patience{0};
};

/// Waits until every member of a sub-group has asked for it; returns its name, the same on all.
/// Errors: kPeerLost when some do not come, naming them.
Result<std::string> meet_subgroup(Meeting& meeting, const SubgroupOptions& options);

}  // namespace gradpress::comm
