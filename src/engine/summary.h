// What a runtime does, as text: for ranks to agree on, and for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "comm/topology.h"
#include "engine/runtime.h"

namespace gradpress::engine {

/// Two runtimes with the same text do the same: messages, and the order of their turns.
std::string description_of(Runtime& runtime);

/// Messages, codecs, options, and the bytes that the step sends from this rank.
std::string summary_of(Runtime& runtime, std::string_view running, std::uint64_t step,
                       const comm::Topology& topology, bool sum_payloads);

}  // namespace gradpress::engine
