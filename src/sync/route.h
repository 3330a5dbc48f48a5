// One rank's tables for one option: what each stage reads, writes, sends and receives. Made once;
// at run time a message only loops over them.
#pragma once

#include <gradpress/codec.h>
#include <gradpress/group.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <variant>
#include <vector>

#include "codec/frame.h"
#include "comm/topology.h"
#include "plan/option.h"
#include "sync/partition.h"

namespace gradpress::sync {

/// A byte's place: in one of the message's buffers, or in a member's gradient.
struct Spot {
  static constexpr std::uint32_t kGradients = 0xFFFFFFFF;
  std::uint32_t buffer = 0;
  std::uint32_t member = 0;  ///< of kGradients
  std::size_t offset = 0;    ///< bytes

  bool in_gradients() const { return buffer == kGradients; }
};

struct Area {
  Spot at = {};
  std::size_t bytes = 0;
};

struct Transfer {
  Spot from = {};
  Spot to = {};
  std::size_t bytes = 0;
};

struct CommTask {
  plan::Phase phase = plan::Phase::kFlat;
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType type = DataType::kBytes;
  Area in = {};
  Area out = {};
  std::vector<std::size_t> counts = {};
  std::vector<std::size_t> receive_counts = {};
  std::vector<Transfer> before = {};  ///< side by side for the collective
  std::vector<Transfer> after = {};   ///< and back
  /// After a Decomp or the last sum: one float of every piece that came. A poisoned piece is NaN
  /// throughout.
  std::vector<Spot> probes = {};
  bool scales = false;  ///< the sum is complete: it becomes the result, in `out`
  bool last = false;    ///< `after` writes the gradients
  SentBytes sent = {};
};

/// A block in a buffer.
struct PlacedBlock {
  std::uint32_t shard = 0;
  std::uint32_t sender = 0;
  std::size_t offset = 0;
  const codec::FrameLayout* layout = nullptr;
};

struct EncodeTask {
  unsigned site = 0;
  unsigned round = 0;
  bool framed = true;
  bool as_vector = false;  ///< low rank: `blocks` is one, of all payloads
  bool counted = true;     ///< of identical replicas one gives its residual
  std::uint32_t first_shard = 0;
  std::uint32_t source = 0;  ///< as Holding::source, of what is encoded
  std::uint32_t shards = 1;
  std::vector<Area> inputs = {};           ///< per member
  std::vector<std::uint64_t> begins = {};  ///< per member: where its input begins in the tensor
  std::uint32_t buffer = 0;
  std::size_t bytes = 0;  ///< of all blocks
  std::vector<PlacedBlock> blocks = {};
  Area reduced = {};  ///< later rounds: the sum of the round before
  const codec::FrameLayout* reduced_layout = nullptr;
};

struct DecodeTask {
  unsigned site = 0;
  bool framed = true;
  bool as_vector = false;
  bool scales = false;  ///< the last one, and the sum is complete: weight 1/W
  std::uint32_t buffer = 0;
  std::size_t bytes = 0;
  std::vector<PlacedBlock> blocks = {};  ///< by shard, then sender
  std::vector<Area> outputs = {};        ///< per member: all its shards side by side
  const Partition* partition = nullptr;
  std::uint32_t first = 0;  ///< the shard that outputs begin with
};

/// Nothing to do for this rank: it waits for a root's broadcast.
struct IdleTask {};

using Task = std::variant<IdleTask, CommTask, EncodeTask, DecodeTask>;

struct RouteInput {
  plan::Option option = {};
  comm::Topology topology = {};
  unsigned rank = 0;
  std::span<const std::uint64_t> elements = {};  ///< per member
  std::span<const Codec* const> codecs = {};     ///< per member
  /// Low rank: payload bytes by round, then member; empty for other codecs.
  std::span<const std::vector<std::size_t>> vector_bytes = {};
  DataType payload_type = DataType::kBytes;  ///< of payloads that are summed
};

/// Movable only: tasks point into the deques, whose elements stay where they are.
struct Route {
  Route() = default;
  Route(Route&&) = default;
  Route& operator=(Route&&) = default;
  Route(const Route&) = delete;
  Route& operator=(const Route&) = delete;

  std::vector<Task> tasks = {};  ///< one per action
  std::vector<std::size_t> buffer_bytes = {};
  std::deque<Partition> partitions = {};
  std::deque<codec::FrameLayout> layouts = {};
};

/// Requires: plan::why_not is empty for every member.
Route make_route(const RouteInput& input);

}  // namespace gradpress::sync
