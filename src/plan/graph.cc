#include "plan/graph.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "plan/grammar.h"

namespace gradpress::plan {

namespace {

bool has_bit(unsigned bits, unsigned bit) { return (bits >> bit & 1U) != 0; }

/// What distinguishes two states: where in the grammar, what the path has fixed, what is held.
struct StateKey {
  const Production* production;  ///< null: before a symbol's productions
  std::uint8_t index;            ///< terminals done
  Symbol symbol;
  PathState path;
  /// What is held: shards and joins so far, as digits; payload multiples likewise.
  std::uint64_t size;
  std::uint64_t payloads;
  std::uint8_t encodes;  ///< counted only where they are limited
  std::uint8_t round;

  auto order() const {
    return std::tuple(production, index, symbol, path.outer_phase, path.single, path.outer_second,
                      path.inter_second, size, payloads, encodes, round);
  }
  friend bool operator<(const StateKey& a, const StateKey& b) { return a.order() < b.order(); }
};

/// Depth-first over the grammar, one state per key.
class Builder {
 public:
  Builder(const Restrictions& restrictions, const CodecFit& fit, bool is_matrix)
      : restrictions_(restrictions), fit_(fit), is_matrix_(is_matrix) {}

  void build(std::vector<OptionGraph::Edge>& edges, std::uint32_t& states) {
    edges_ = &edges;
    states_ = &states;
    for (const Symbol root :
         {Symbol::kFlat, Symbol::kHier, Symbol::kRoundsFlat, Symbol::kRoundsHier}) {
      StateKey key{};
      key.symbol = root;
      (void)visit_symbol(key, OptionGraph::kStart);
    }
  }

 private:
  /// The state of a key; explores it when new. Returns whether an option can end below it.
  bool state_of(const StateKey& key, std::uint32_t& state) {
    if (key.production == nullptr && key.symbol == Symbol::kEnd) {
      state = OptionGraph::kEnd;
      return true;
    }
    const auto [found, is_new] = known_.try_emplace(key, Known{*states_, false});
    if (!is_new) {
      state = found->second.state;
      return found->second.ends;
    }
    state = (*states_)++;
    Known& known = found->second;
    const bool ends = key.production == nullptr ? visit_symbol(key, state)
                                                : visit_terminals(*key.production, key, state);
    known.ends = ends;
    return ends;
  }

  bool visit_symbol(const StateKey& key, std::uint32_t state) {
    bool ends = false;
    for (const Production& production : productions()) {
      if (production.from != key.symbol) continue;
      StateKey inside = key;
      inside.production = &production;
      inside.index = 0;
      ends = visit_terminals(production, inside, state) || ends;
    }
    return ends;
  }

  bool visit_terminals(const Production& production, const StateKey& key, std::uint32_t state) {
    if (key.index == production.count) {
      // An empty production: the same state goes on with another symbol.
      StateKey next = key;
      next.production = nullptr;
      next.index = 0;
      next.symbol = production.to;
      return visit_symbol(next, state);
    }
    const Terminal terminal = production.terminals[key.index];
    const Phase phase = phase_of(production.from, key.path);
    const Choices allowed = choices(terminal, phase, key.path);
    bool ends = false;
    for (std::size_t i = 0; i < allowed.count; ++i) {
      const Action& action = allowed.actions[i];
      if (!may_take(production, key, terminal, action, state == OptionGraph::kStart)) continue;
      StateKey next = after(key, terminal, action);
      if (++next.index == production.count) {
        next.production = nullptr;
        next.index = 0;
        next.symbol = production.to;
      }
      std::uint32_t target = 0;
      if (!state_of(next, target)) continue;
      edges_->push_back({action, state, target});
      ends = true;
    }
    return ends;
  }

  bool may_take(const Production& production, const StateKey& key, Terminal terminal,
                const Action& action, bool is_first) const {
    const bool sums = terminal == Terminal::kCommS || terminal == Terminal::kComm1S;
    if (sums && !(restrictions_.extended && fit_.reducible)) return false;
    if (action.kind == ActionKind::kComm) {
      if (has_bit(restrictions_.forbidden_phases, static_cast<unsigned>(action.phase)) ||
          has_bit(restrictions_.forbidden_collectives, static_cast<unsigned>(action.collective))) {
        return false;
      }
      return !(fit_.whole_tensor && action.encoded && action.step != Step::kSecond && !sums);
    }
    if (!(action.place == Place::kDevice ? restrictions_.device : restrictions_.host)) return false;
    if (action.kind == ActionKind::kComp) {
      const bool rounds_path = production.from >= Symbol::kRoundsFlat;
      if (!fit_.encodes || rounds_path != (fit_.rounds == 2)) return false;
      if (fit_.whole_tensor && ((!is_first && !rounds_path) || !is_matrix_)) return false;
      return !limits_encodes() || key.encodes < restrictions_.max_encodes;
    }
    const bool is_last = key.index + 1 == production.count && production.to == Symbol::kEnd;
    return !fit_.whole_tensor || is_last;
  }

  bool limits_encodes() const { return restrictions_.max_encodes < Option::kMaxActions; }

  StateKey after(StateKey key, Terminal terminal, const Action& action) const {
    key.path = advance(key.path, terminal, action);
    if (action.kind == ActionKind::kComp) {
      key.payloads = 1;
      if (limits_encodes()) ++key.encodes;
      if (fit_.rounds == 2) ++key.round;
      return key;
    }
    if (action.kind == ActionKind::kDecomp) {
      key.payloads = 0;
      return key;
    }
    // Digits of base 16 remember by which phase's members a size was cut and joined again.
    const auto digit = static_cast<std::uint64_t>(action.phase);
    if (action.collective == Collective::kReduceScatter ||
        action.collective == Collective::kAllToAll) {
      key.size = key.size * 16 + 1 + digit;
    }
    const bool second = action.step == Step::kSecond;
    if (action.collective == Collective::kAllGather && second) key.size = key.size * 16 + 5 + digit;
    const bool multiplies = action.collective == Collective::kAllToAll ||
                            action.collective == Collective::kGather ||
                            (action.collective == Collective::kAllGather && !second);
    if (multiplies) key.payloads = key.payloads * 16 + 1 + digit;
    return key;
  }

  struct Known {
    std::uint32_t state;
    bool ends;
  };
  const Restrictions& restrictions_;
  const CodecFit& fit_;
  bool is_matrix_;
  std::vector<OptionGraph::Edge>* edges_ = nullptr;
  std::uint32_t* states_ = nullptr;
  std::map<StateKey, Known> known_;
};

/// The codec grid; see price_list. Inter counts 1 but in the last rows.
constexpr std::array<Prices, kPriceCount> make_prices() {
  std::array<Prices, kPriceCount> list{};
  std::size_t count = 0;
  for (const float device : {0.03F, 0.3F, 1.0F, 3.0F}) {
    for (const float host : {0.01F, 0.1F, 0.5F, 1.0F}) {
      for (const float intra : {0.02F, 0.3F, 1.0F}) list[count++] = {device, host, intra, 1.0F};
    }
  }
  for (const float host : {0.03F, 0.3F, 1.0F}) {
    for (const float intra : {0.03F, 0.3F, 1.0F}) list[count++] = {1.0F, host, intra, 0.1F};
  }
  constexpr float kLittle = 1e-4F;
  list[count++] = {kLittle, kLittle, kLittle, 1.0F};
  list[count++] = {kLittle, kLittle, 1.0F, kLittle};
  list[count++] = {1.0F, kLittle, kLittle, kLittle};
  list[count++] = {kLittle, 1.0F, kLittle, kLittle};
  list[count++] = {1.0F, 1.0F, 1.0F, 1e-3F};
  // Never encode: the best raw options.
  list[count++] = {1e4F, 1e4F, 1.0F, 1.0F};
  list[count++] = {1e4F, 1e4F, 0.1F, 1.0F};
  return list;
}
constexpr std::array<Prices, kPriceCount> kPrices = make_prices();

}  // namespace

OptionGraph::OptionGraph(const Restrictions& restrictions, const CodecFit& fit,
                         const Topology& topology, bool is_matrix) {
  if (restrictions.accepts == nullptr) {
    build_from_grammar(restrictions, fit, is_matrix);
  } else {
    build_from_options(restrictions, fit, topology, is_matrix);
  }
  sort_edges();
}

void OptionGraph::build_from_grammar(const Restrictions& restrictions, const CodecFit& fit,
                                     bool is_matrix) {
  edges_.reserve(512);
  Builder(restrictions, fit, is_matrix).build(edges_, states_);
}

/// Named sub-trees judge whole options: each becomes a path of its own, beginnings shared.
void OptionGraph::build_from_options(const Restrictions& restrictions, const CodecFit& fit,
                                     const Topology& topology, bool is_matrix) {
  const OptionTree tree(restrictions);
  const Shape shape = is_matrix ? Shape{2, 2} : Shape{4};
  std::map<std::uint32_t, std::uint32_t> state_of = {{OptionTree::kRoot, kStart}};
  std::vector<bool> used(tree.nodes().size(), false);
  for (std::uint32_t node = 0; node < tree.nodes().size(); ++node) {
    if (!tree.nodes()[node].is_option) continue;
    if (!why_not(tree.option_at(node), fit, shape, topology).empty()) continue;
    for (std::uint32_t at = node; at != OptionTree::kRoot; at = tree.nodes()[at].parent) {
      used[at] = true;
    }
  }
  for (std::uint32_t node = 0; node < tree.nodes().size(); ++node) {
    if (!used[node]) continue;
    const OptionTree::Node& at = tree.nodes()[node];
    const std::uint32_t target = at.is_option ? kEnd : states_++;
    state_of[node] = target;
    edges_.push_back({at.action, state_of[at.parent], target});
  }
}

/// Orders edges by the longest way from the start to their origin, so that one pass forwards prices
/// them and one pass backwards finds cheapest paths.
void OptionGraph::sort_edges() {
  std::vector<std::uint32_t> depth(states_, 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (const Edge& edge : edges_) {
      if (depth[edge.to] < depth[edge.from] + 1) {
        depth[edge.to] = depth[edge.from] + 1;
        changed = true;
      }
    }
  }
  std::ranges::stable_sort(edges_, [&depth](const Edge& a, const Edge& b) {
    return std::pair(depth[a.from], a.from) < std::pair(depth[b.from], b.from);
  });
}

PricedGraph::PricedGraph(const OptionGraph& graph, const CommCosts& comm, const Cluster& cluster,
                         const codec::Spec& spec, const Shape& shape)
    : graph_(&graph) {
  Pricer pricer(comm, cluster, &spec, shape);
  std::vector<Pricer::Held> held(graph.states());
  edges_.reserve(graph.edges().size());
  for (const OptionGraph::Edge& edge : graph.edges()) {
    Pricer::Held after = held[edge.from];
    const bool rooted = after.first.rooted;
    const TensorCosts::Price price = pricer.apply(edge.action, after);
    held[edge.to] = after;
    const bool is_comm = edge.action.kind == ActionKind::kComm;
    const double fixed_us =
        is_comm ? comm.line(edge.action.phase, edge.action.collective, rooted).fixed_us : 0.0;
    edges_.push_back(
        {edge.from, edge.to, static_cast<std::uint32_t>(price.lane), price.us, fixed_us});
  }
}

void PricedGraph::add_member(const PricedGraph& other) {
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    edges_[i].us += other.edges_[i].us - other.edges_[i].fixed_us;
  }
}

Option PricedGraph::option(const Path& path) const {
  std::array<Action, Option::kMaxActions> actions{};
  for (std::size_t i = 0; i < path.count; ++i) {
    actions[i] = graph_->edges()[path.edges[i]].action;
  }
  return Option(std::span<const Action>(actions.data(), path.count));
}

template <class Time>
double PricedGraph::least(Lane lane, Time time) const {
  std::vector<double> least(graph_->states(), std::numeric_limits<double>::infinity());
  least[OptionGraph::kEnd] = 0.0;
  for (std::size_t i = edges_.size(); i-- > 0;) {
    const Edge& edge = edges_[i];
    const double us = edge.lane == static_cast<std::uint32_t>(lane) ? time(edge) : 0.0;
    least[edge.from] = std::min(least[edge.from], us + least[edge.to]);
  }
  return least[OptionGraph::kStart];
}

double PricedGraph::least_us(Lane lane) const {
  return least(lane, [](const Edge& edge) { return edge.us; });
}

double PricedGraph::least_bytes_us(Lane lane) const {
  return least(lane, [](const Edge& edge) { return edge.us - edge.fixed_us; });
}

double PricedGraph::least_latency_us(Lane lane) const {
  return least(lane, [](const Edge& edge) { return edge.fixed_us; });
}

std::vector<Path> PricedGraph::undominated() const {
  struct Tail {
    Loads loads;
    std::uint32_t edge;
    std::uint32_t rest;  ///< index in the front of the edge's target
  };
  const auto dominates = [](const Loads& a, const Loads& b) {
    return a[0] <= b[0] && a[1] <= b[1] && a[2] <= b[2] && a[3] <= b[3];
  };
  std::vector<std::vector<Tail>> fronts(graph_->states());
  fronts[OptionGraph::kEnd].push_back({});
  for (std::size_t i = edges_.size(); i-- > 0;) {
    const Edge& edge = edges_[i];
    std::vector<Tail>& front = fronts[edge.from];
    // A tail's target is finished: its edges come later in the order, and were done before.
    const std::vector<Tail>& rest = fronts[edge.to];
    for (std::uint32_t j = 0; j < rest.size(); ++j) {
      Tail tail{rest[j].loads, static_cast<std::uint32_t>(i), j};
      tail.loads[edge.lane] += edge.us;
      const bool covered = std::ranges::any_of(
          front, [&](const Tail& other) { return dominates(other.loads, tail.loads); });
      if (covered) continue;
      std::erase_if(front, [&](const Tail& other) { return dominates(tail.loads, other.loads); });
      front.push_back(tail);
    }
  }
  std::vector<Path> paths;
  for (const Tail& first : fronts[OptionGraph::kStart]) {
    Path path;
    for (Tail tail = first;;) {
      path.edges[path.count++] = static_cast<std::uint16_t>(tail.edge);
      const std::uint32_t target = edges_[tail.edge].to;
      if (target == OptionGraph::kEnd) break;
      tail = fronts[target][tail.rest];
    }
    paths.push_back(path);
  }
  return paths;
}

std::span<const Prices, kPriceCount> price_list() { return kPrices; }

CheapestPaths cheapest_paths(const PricedGraph& graph, EdgeFilter filter) {
  constexpr float kNever = std::numeric_limits<float>::infinity();
  struct alignas(64) PriceRow {
    std::array<float, kPriceCount> price;
  };
  // Transposed, so that the inner loop runs over price vectors side by side.
  static constexpr auto kByLane = [] {
    std::array<PriceRow, kLanes> by_lane{};
    for (std::size_t i = 0; i < kPriceCount; ++i) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) by_lane[lane].price[i] = kPrices[i][lane];
    }
    return by_lane;
  }();
  std::vector<PriceRow> best(graph.graph().states());
  for (PriceRow& state : best) state.price.fill(kNever);
  best[OptionGraph::kEnd].price.fill(0.0F);
  const auto edges = graph.edges();
  const auto actions = graph.graph().edges();
  // Edges out of a state stand together: where they begin.
  std::vector<std::uint16_t> first_edge(best.size(), 0);
  for (std::size_t i = edges.size(); i-- > 0;) {
    const PricedGraph::Edge& edge = edges[i];
    first_edge[edge.from] = static_cast<std::uint16_t>(i);
    if (filter != nullptr && !filter(actions[i].action)) continue;
    PriceRow& from = best[edge.from];
    const PriceRow& to = best[edge.to];
    const auto us = static_cast<float>(edge.us);
    const PriceRow& weights = kByLane[edge.lane];
    for (std::size_t p = 0; p < kPriceCount; ++p) {
      from.price[p] = std::min(from.price[p], weights.price[p] * us + to.price[p]);
    }
  }
  CheapestPaths result;
  result.price = best[OptionGraph::kStart].price;
  for (std::size_t p = 0; p < kPriceCount; ++p) {
    if (result.price[p] == kNever) continue;
    Path& path = result.path[p];
    for (std::uint32_t state = OptionGraph::kStart; state != OptionGraph::kEnd;) {
      // The edge that gave the state its price: the same sum, bit for bit.
      std::uint16_t edge = first_edge[state];
      for (;; ++edge) {
        if (filter != nullptr && !filter(actions[edge].action)) continue;
        const auto us = static_cast<float>(edges[edge].us);
        const float price = kByLane[edges[edge].lane].price[p] * us + best[edges[edge].to].price[p];
        if (price == best[state].price[p]) break;
      }
      path.edges[path.count++] = edge;
      state = edges[edge].to;
    }
  }
  return result;
}

}  // namespace gradpress::plan
