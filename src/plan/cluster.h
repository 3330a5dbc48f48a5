// Machines, workers, two links, and what codecs cost there.
#pragma once

#include <gradpress/status.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "plan/fit.h"
#include "plan/option.h"
#include "spec/spec.h"

namespace gradpress::plan {

/// Latency and rate of one link, for each collective (the link's own where nothing else is given),
/// and for all workers in one group where that differs from a group of one worker per machine.
struct LinkModel {
  struct Rate {
    double latency_us = 0.0;
    double gbps = 1.0;
    bool known = true;  ///< false: the rate is a lower bound, which is used but not printed
  };
  Rate link;
  std::array<std::optional<Rate>, kCollectives> overrides;
  std::array<std::optional<Rate>, kCollectives> flat_overrides;

  Rate of(Collective collective) const {
    return overrides[static_cast<std::size_t>(collective)].value_or(link);
  }
  Rate of_flat(Collective collective) const {
    return flat_overrides[static_cast<std::size_t>(collective)].value_or(of(collective));
  }
};

struct CostPoint {
  std::uint64_t elements = 0;
  double encode_us = 0.0;
  double decode_us = 0.0;
};

/// Piecewise linear in elements: constant below the first point, the last slope above the last one
/// (never below zero). Requires: at least one point, elements strictly ascending.
class CostCurve {
 public:
  explicit CostCurve(std::vector<CostPoint> points) : points_(std::move(points)) {}
  double encode_us(std::uint64_t elements) const { return at(elements, &CostPoint::encode_us); }
  double decode_us(std::uint64_t elements) const { return at(elements, &CostPoint::decode_us); }
  const std::vector<CostPoint>& points() const { return points_; }
  /// All times multiplied (a faster or slower codec).
  CostCurve scaled(double factor) const;

 private:
  double at(std::uint64_t elements, double CostPoint::*time) const;
  std::vector<CostPoint> points_;
};

/// What a decode time in a cluster file is the time of.
enum class DecodeCosts : std::uint8_t {
  kPerPayload,    ///< one payload: a Decomp of c payloads takes c times as long
  kPerOperation,  ///< one Decomp, which decodes all its payloads in one call
};
std::string_view to_text(DecodeCosts costs);

/// The rank at which the costs under a low-rank codec's bare name ("acpsgd") were measured.
inline constexpr unsigned kRankOfBareName = 4;

struct RankedCurve {
  unsigned rank;
  const CostCurve* curve;
};

struct Cluster {
  std::string name;
  std::string about;
  Topology topology;
  LinkModel intra;
  LinkModel inter;
  DecodeCosts decode_costs = DecodeCosts::kPerPayload;
  /// By codec text, then by place.
  std::map<std::string, std::array<std::optional<CostCurve>, 2>, std::less<>> codec_costs;

  /// The costs of a codec: by its full text ("dgc:0.01"), then by its name ("dgc"), then, for a
  /// low-rank codec, at any rank. Null when the cluster has none at that place.
  const CostCurve* costs(const codec::Spec& spec, Place place) const;
  /// A low-rank codec's costs at every rank the cluster has, ascending.
  std::vector<RankedCurve> costs_by_rank(codec::Kind kind, Place place) const;
  /// Whether the cluster knows the codec at all; the message lists those it knows.
  Status check_codec(const codec::Spec& spec) const;
};

/// The format gradpress-cluster-1. Errors: kInvalidArgument, naming file and JSON path: a missing
/// field, zero machines or workers, a rate or time out of range, an unknown word in decode_costs, a
/// codec that gradpress does not know, a codec without points or with points out of order.
Result<Cluster> read_cluster(const std::string& file);
/// The same from JSON; `origin` stands in errors where the file's name would.
Result<Cluster> cluster_from_json(const Json& json, std::string_view origin);

}  // namespace gradpress::plan
