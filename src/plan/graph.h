// The decision tree folded: equal sub-trees once. 4341 paths share some 250 actions.
//
// What an action costs depends on what the worker holds, and few different things can be held. A
// state of the graph is a place in the grammar together with what is held there; an edge is an
// action. Prices of edges are computed per tensor size, and cheapest paths by dynamic programming.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/cost.h"
#include "plan/fit.h"
#include "plan/tree.h"

namespace gradpress::plan {

/// The options of one tree that fit one codec. Immutable; any number of threads.
class OptionGraph {
 public:
  struct Edge {
    Action action;
    std::uint32_t from;
    std::uint32_t to;
  };
  static constexpr std::uint32_t kEnd = 0;
  static constexpr std::uint32_t kStart = 1;

  /// Without matrices, low-rank codecs have raw options only. Cost: about 50 µs for the whole tree.
  OptionGraph(const Restrictions& restrictions, const CodecFit& fit, const Topology& topology,
              bool is_matrix);

  /// In an order in which every edge into a state comes before every edge out of it.
  std::span<const Edge> edges() const { return edges_; }
  std::uint32_t states() const { return states_; }
  bool empty() const { return edges_.empty(); }

 private:
  void build_from_grammar(const Restrictions& restrictions, const CodecFit& fit, bool is_matrix);
  void build_from_options(const Restrictions& restrictions, const CodecFit& fit,
                          const Topology& topology, bool is_matrix);
  void sort_edges();

  std::vector<Edge> edges_;
  std::uint32_t states_ = 2;
};

/// An option as indices of edges.
struct Path {
  std::array<std::uint16_t, Option::kMaxActions> edges{};
  std::uint8_t count = 0;

  friend bool operator==(const Path&, const Path&) = default;
};

/// A graph priced for one shape under one codec. Requires: the graph outlives it.
class PricedGraph {
 public:
  PricedGraph(const OptionGraph& graph, const CommCosts& comm, const Cluster& cluster,
              const codec::Spec& spec, const Shape& shape);

  struct Edge {
    std::uint32_t from;
    std::uint32_t to;
    std::uint32_t lane;
    double us;
    double fixed_us;  ///< the latency in it, which a message pays once for all its members
  };
  /// Makes this the graph of a message with one member more.
  /// Requires: the same graph, cluster and codec.
  void add_member(const PricedGraph& other);

  std::span<const Edge> edges() const { return edges_; }
  const OptionGraph& graph() const { return *graph_; }
  Option option(const Path& path) const;
  /// The least time any option spends on a lane.
  double least_us(Lane lane) const;
  /// The same of the bytes alone, and of the latencies alone; the option may be another.
  double least_bytes_us(Lane lane) const;
  double least_latency_us(Lane lane) const;
  /// Paths that no other path dominates on all four lanes.
  std::vector<Path> undominated() const;

 private:
  template <class Time>
  double least(Lane lane, Time time) const;

  const OptionGraph* graph_;
  std::vector<Edge> edges_;
};

/// What a microsecond of each lane is taken to be worth.
using Prices = std::array<float, kLanes>;
/// As many as the dynamic program carries at once.
inline constexpr std::size_t kPriceCount = 64;
/// The prices that candidates are found with: from "only the network counts" to "only the
/// device does", and from "a codec costs nothing" to "never encode".
std::span<const Prices, kPriceCount> price_list();

/// For each price vector the cheapest path and its price; an infinite price where there is none.
struct CheapestPaths {
  std::array<float, kPriceCount> price;
  std::array<Path, kPriceCount> path;
};
/// Keeps the paths all of whose actions it accepts.
using EdgeFilter = bool (*)(const Action& action);
CheapestPaths cheapest_paths(const PricedGraph& graph, EdgeFilter filter = nullptr);

}  // namespace gradpress::plan
