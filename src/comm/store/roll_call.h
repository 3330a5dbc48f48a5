// The members of a group find together at the store, and agree on what they are.
#pragma once

#include <gradpress/status.h>

#include <chrono>
#include <span>
#include <string>
#include <string_view>

#include "comm/store/client.h"

namespace gradpress::comm::store {

struct RollCall {
  std::string key = {};                    ///< the group's place in the store
  std::string_view what = {};              ///< names the group in errors: "world"
  std::span<const unsigned> members = {};  ///< world ranks
  unsigned rank = 0;                       ///< this one's, in the world
  std::string facts = {};                  ///< must be equal on all: "4 ranks, 2 per machine"
  std::chrono::milliseconds patience{0};
};

/// Returns when every member has come.
/// Errors: kPeerLost when some have not, naming them, the address and the seconds waited;
///         kInvalidArgument when two say different facts or claim the same rank: then all that wait
///         are told.
Status call_roll(StoreClient& store, const RollCall& call);

}  // namespace gradpress::comm::store
