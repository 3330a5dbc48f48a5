// What each action of an option costs, by the latency-bandwidth model of docs/cost_model.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/cluster.h"
#include "plan/option.h"
#include "plan/span.h"
#include "plan/trace.h"

namespace gradpress::plan {

/// The tasks of one message, in order, without those of length zero. Fixed size: two cache lines.
struct Chain {
  std::array<double, Option::kMaxActions> us{};
  std::array<Lane, Option::kMaxActions> lanes{};
  std::array<std::uint8_t, Option::kMaxActions> actions{};  ///< which action of the option
  std::uint8_t count = 0;

  void add(Lane lane, double time_us, std::size_t action);
};

/// Time per lane.
using Loads = std::array<double, kLanes>;
Loads loads_of(const Chain& chain);

/// The collectives of one cluster as straight lines in bytes.
class CommCosts {
 public:
  explicit CommCosts(const Cluster& cluster);

  struct Line {
    double fixed_us = 0.0;
    double us_per_byte = 0.0;
  };
  /// `rooted`: the first intra step was a reduce or a gather, so that one worker per machine sends.
  Line line(Phase phase, Collective collective, bool rooted) const;
  Lane lane(Phase phase) const;
  std::uint32_t members(Phase phase) const;
  const Topology& topology() const { return topology_; }

 private:
  Topology topology_;
  /// flat, intra, inter with every worker sending, inter with the root alone.
  std::array<std::array<Line, kCollectives>, 4> lines_;
};

/// A codec's costs, by place.
struct CodecCurves {
  std::array<const CostCurve*, 2> at{};               ///< null where the cluster has none
  std::array<std::vector<RankedCurve>, 2> by_rank{};  ///< of low-rank codecs, which use these alone
  DecodeCosts decode_costs = DecodeCosts::kPerPayload;

  /// `rank`: the tensor's effective one; without meaning for codecs that have none. Between two
  /// measured ranks, and beyond them, times are linear in the rank; where there is one rank alone,
  /// what exceeds the time of the smallest tensor is in proportion to it.
  /// Requires: the cluster has costs at the place.
  double encode_us(Place place, std::uint64_t elements, std::uint64_t rank) const;
  double decode_us(Place place, std::uint64_t elements, std::uint64_t rank) const;
};
/// Looks texts up: asked once per codec, not once per tensor.
CodecCurves curves_of(const Cluster& cluster, const codec::Spec& spec);

/// A sentence for each low-rank codec whose costs at the ranks of these tensors are extrapolated.
std::vector<std::string> extrapolated_costs(const Cluster& cluster,
                                            std::span<const codec::Spec> codecs,
                                            std::span<const Tensor> tensors);

/// Walks options of one tensor under one codec. A walk is a value (Held) that the caller carries
/// along the tree, so that paths share the cost of their common beginning.
///
/// Sizes a tensor can have on its way (whole, sharded by k, by N, by both …) are few: each is
/// priced once, and holding one is an index.
/// Requires: comm, curves and spec outlive it. Threads: one at a time (sizes are priced on demand).
class TensorCosts {
 public:
  /// `spec` may be null: raw options only. `round` is acpsgd's step of two.
  TensorCosts(const CommCosts& comm, CodecCurves curves, const codec::Spec* spec,
              const Shape& shape, unsigned round = 0);

  /// What a worker holds between two actions.
  struct Held {
    std::uint32_t size = 0;      ///< index of a priced size
    std::uint64_t payloads = 0;  ///< 0: raw
    bool rooted = false;         ///< only the machine's root goes on
    std::uint8_t encodes = 0;    ///< in a row: the round of a two-round codec
  };
  struct Price {
    Lane lane;
    double us;
  };
  Held start() const { return {}; }
  /// The action's lane and time; `held` becomes what it leaves.
  /// Requires: an action the tree allows here; for codec work, costs at its place.
  Price apply(const Action& action, Held& held);

  /// Bytes one worker holds.
  double bytes(const Held& held) const;

 private:
  struct Size {
    std::uint64_t elements;
    std::uint32_t parts;                  ///< shards the whole was cut into
    std::array<double, 2> payload_bytes;  ///< by round
    std::array<double, 2> encode_us;      ///< by place
    std::array<double, 2> decode_us;
    /// Index + 1 of the size after a shard or a join by phase's members; 0: not priced yet.
    std::array<std::uint32_t, kPhases> shard{};
    std::array<std::uint32_t, kPhases> join{};
  };
  std::uint32_t add_size(std::uint64_t elements, std::uint32_t parts);
  std::uint32_t sharded(std::uint32_t size, Phase phase);
  std::uint32_t joined(std::uint32_t size, Phase phase);

  const CommCosts& comm_;
  const codec::Spec* spec_;
  CodecCurves curves_{};
  Shape shape_;
  bool low_rank_ = false;
  unsigned round_;
  std::vector<Size> sizes_;
};

/// The same under any codec: acpsgd's two steps are priced by their mean.
class Pricer {
 public:
  Pricer(const CommCosts& comm, const Cluster& cluster, const codec::Spec* spec,
         const Shape& shape);
  struct Held {
    TensorCosts::Held first, second;
  };
  TensorCosts::Price apply(const Action& action, Held& held);
  Chain chain(const Option& option);

 private:
  TensorCosts first_;
  std::optional<TensorCosts> second_;
};

}  // namespace gradpress::plan
