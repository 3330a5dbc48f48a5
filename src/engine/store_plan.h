// Which messages of a step take turns in which memory, so that a step needs that of a few and
// cannot come to a stop over it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "comm/topology.h"
#include "engine/program.h"

namespace gradpress::engine {

inline constexpr std::uint32_t kNoStore = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint32_t kNoMessage = std::numeric_limits<std::uint32_t>::max();

/// Messages that are one raw collective do not: they have memory only while it runs.
bool needs_store(const plan::Option& option);

/// Two for each lane that messages with stores pass: one that runs there, and one that is ready to.
std::uint32_t stores_for(std::span<const sync::MessageSpec> messages,
                         const comm::Topology& topology);

struct StorePlan {
  std::uint32_t stores = 0;
  std::vector<std::uint32_t> of_message = {};  ///< its store, or kNoStore
  std::vector<std::uint32_t> before = {};      ///< who has it before in the step, or kNoMessage
};

/// stores_for() of them, in turn in the order in which messages first take a link. Messages whose
/// collectives are interleaved on the links may need more at a time: then there are as many as they
/// need, found by playing the step. `serial`: message after message, in one store. Requires:
/// check_order() is well.
StorePlan plan_stores(const Program& program, const comm::Topology& topology, bool serial);

}  // namespace gradpress::engine
