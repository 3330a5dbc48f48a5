// What a step does: its messages, and in which order they use each link.
#pragma once

#include <gradpress/shape.h>
#include <gradpress/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/topology.h"
#include "plan/span.h"
#include "plan/strategy.h"
#include "sync/message.h"

namespace gradpress::engine {

/// A collective's place in the order of its link.
struct Turn {
  std::uint32_t message = 0;
  std::uint32_t stage = 0;

  friend bool operator==(const Turn&, const Turn&) = default;
};

/// One per kind of step; all ranks have the same.
///
/// The order is part of the plan: a message that is not ready holds the later ones, so that ranks
/// whose gradients become ready in different orders still start the same collectives in the same
/// order. Collectives of groups of one member take no turn.
struct Program {
  std::vector<sync::MessageSpec> messages = {};
  std::array<std::vector<Turn>, 2> order = {};  ///< by sync::Link
};

/// What the steps do: all the same, or two kinds that take turns (ACP-SGD's P and Q).
struct Programs {
  Program first = {};
  std::optional<Program> second = {};
};

struct TensorSpec {
  std::string name = {};
  Shape shape = {};
};

/// The messages of a strategy in one of acpsgd's two steps, tensors in the order of the model's
/// backward, without an order of turns.
/// Requires: as many choices as tensors; buckets numbered 0 to count - 1, none empty.
std::vector<sync::MessageSpec> make_messages(std::span<const TensorSpec> tensors,
                                             const plan::Strategy& strategy,
                                             std::span<const codec::Spec> codecs,
                                             std::uint64_t seed, unsigned round = 0);

/// The order in which a timeline starts the collectives. Requires: spans of these messages.
std::array<std::vector<Turn>, 2> order_of(std::span<const plan::Span> spans,
                                          std::span<const sync::MessageSpec> messages,
                                          const comm::Topology& topology);

/// The link on which several workers take part in an action; none: codec work, or a group of one.
std::optional<sync::Link> link_of(const plan::Action& action, const comm::Topology& topology);

/// An order for messages without a timeline: messages become ready one after the other, every stage
/// takes as long as any other, and a link serves first what was first runnable. But of messages
/// with several stages no more are under way together than there is memory for (stores_for()).
std::array<std::vector<Turn>, 2> natural_order(std::span<const sync::MessageSpec> messages,
                                               const comm::Topology& topology);

/// Whether every collective between several workers has exactly one turn, and no message's turns
/// stand against the order of its stages, within a link and across both.
/// Errors: kInvalidArgument, naming message, stage and link.
Status check_order(const Program& program, const comm::Topology& topology);

}  // namespace gradpress::engine
