#include "plan/search/space.h"

#include <algorithm>
#include <limits>

#include "plan/timeline.h"

namespace gradpress::plan {

SearchSpace::SearchSpace(const Setting& setting, const Restrictions& restrictions,
                         std::span<const std::uint32_t> allowed_codecs, const Buckets& buckets)
    : setting_(setting), comm_(setting.cluster), buckets_(buckets), members_(buckets.count) {
  bool shapes_matter = false;
  graphs_.reserve(setting.codecs.size() + 1);
  for (const codec::Spec& spec : setting.codecs) {
    const CodecFit fit = codec_fit(spec);
    shapes_matter = shapes_matter || fit.whole_tensor;
    graphs_.emplace_back(restrictions, fit, comm_.topology(), true);
  }
  graphs_.emplace_back(restrictions, codec_fit(none_), comm_.topology(), false);

  if (fused()) {
    for (const codec::Spec& spec : setting.codecs) {
      const CodecCurves curves = curves_of(setting.cluster, spec);
      for (const Place place : {Place::kDevice, Place::kHost}) {
        const bool known = curves.at[static_cast<std::size_t>(place)] != nullptr;
        for (const Tensor& tensor : setting.trace.tensors) {
          const std::uint64_t rank = codec::effective_rank(spec, tensor.shape);
          lead_us_.push_back(known ? curves.encode_us(place, tensor.elements, rank) : 0.0);
        }
      }
    }
  }
  const auto tensors = static_cast<std::uint32_t>(setting.trace.tensors.size());
  std::vector<std::uint32_t> kind(tensors);
  for (std::uint32_t i = 0; i < tensors; ++i) {
    const std::uint32_t allowed = allowed_codecs.empty() ? ~0U : allowed_codecs[i];
    kind[i] = kind_of(i, allowed, shapes_matter);
    members_[buckets.of_tensor[i]].push_back(i);
  }
  // Single tensors share the class of their kind; a bucket is a class of its own.
  std::vector<std::uint32_t> class_of_kind(kinds_.size(), ~0U);
  class_of_.resize(buckets.count);
  classes_.reserve(kinds_.size() + buckets.count);
  for (std::uint32_t message = 0; message < buckets.count; ++message) {
    const auto& inside = members_[message];
    const bool single = inside.size() == 1;
    std::uint32_t& known = class_of_kind[kind[inside.front()]];
    if (!single || known == ~0U) {
      const auto made = static_cast<std::uint32_t>(classes_.size());
      MessageClass& message_class = classes_.emplace_back();
      message_class.several_members = !single;
      const Kind& first = kinds_[kind[inside.front()]];
      for (std::size_t i = 0; i < first.codecs.size(); ++i) {
        PricedGraph sum = first.graphs[i];
        bool everywhere = true;
        for (const std::uint32_t tensor : std::span(inside).subspan(1)) {
          const Kind& other = kinds_[kind[tensor]];
          const auto found = std::ranges::find(other.codecs, first.codecs[i]);
          everywhere = everywhere && found != other.codecs.end();
          if (!everywhere) break;
          sum.add_member(other.graphs[static_cast<std::size_t>(found - other.codecs.begin())]);
        }
        if (!everywhere) continue;
        message_class.graphs.push_back(std::move(sum));
        message_class.codecs.push_back(first.codecs[i]);
      }
      message_class.by_price = add_family(message_class, nullptr);
      class_of_[message] = made;
      if (single) known = made;
    } else {
      class_of_[message] = known;
    }
    classes_[class_of_[message]].messages.push_back(message);
  }
}

std::uint32_t SearchSpace::kind_of(std::uint32_t tensor, std::uint32_t allowed,
                                   bool shapes_matter) {
  const Tensor& given = setting_.trace.tensors[tensor];
  const std::uint64_t rows =
      shapes_matter && given.shape.is_matrix() ? given.shape.rows() : std::uint64_t{0};
  for (std::uint32_t i = 0; i < kinds_.size(); ++i) {
    const Kind& kind = kinds_[i];
    if (kind.elements == given.elements && kind.rows == rows && kind.allowed == allowed) return i;
  }
  Kind kind{
      .elements = given.elements, .rows = rows, .allowed = allowed, .graphs = {}, .codecs = {}};
  const auto add = [&](std::size_t graph, const codec::Spec& spec, std::size_t codec) {
    kind.graphs.emplace_back(graphs_[graph], comm_, setting_.cluster, spec, given.shape);
    kind.codecs.push_back(static_cast<std::uint8_t>(codec));
  };
  // Buckets may mix kinds that allow nothing but raw with others: the raw graph serves all.
  add(setting_.codecs.size(), none_, setting_.codecs.size());
  for (std::size_t i = 0; i < setting_.codecs.size(); ++i) {
    const CodecFit fit = codec_fit(setting_.codecs[i]);
    if ((allowed >> i & 1U) == 0 || !fit.encodes) continue;
    if (fit.whole_tensor && !given.shape.is_matrix()) continue;
    add(i, setting_.codecs[i], i);
  }
  kinds_.push_back(std::move(kind));
  return static_cast<std::uint32_t>(kinds_.size() - 1);
}

std::uint16_t SearchSpace::add_candidate(MessageClass& message_class, const Candidate& candidate) {
  for (std::size_t i = 0; i < message_class.candidates.size(); ++i) {
    const Choice& known = message_class.candidates[i].choice;
    if (known.option == candidate.choice.option &&
        (known.option.is_raw() || known.codec == candidate.choice.codec)) {
      return static_cast<std::uint16_t>(i);
    }
  }
  message_class.candidates.push_back(candidate);
  return static_cast<std::uint16_t>(message_class.candidates.size() - 1);
}

std::uint16_t SearchSpace::add_path(MessageClass& message_class, std::size_t graph,
                                    const Path& path) {
  const PricedGraph& priced = message_class.graphs[graph];
  Candidate candidate;
  candidate.choice.option = priced.option(path);
  if (!candidate.choice.option.is_raw()) candidate.choice.codec = message_class.codecs[graph];
  for (std::size_t i = 0; i < path.count; ++i) {
    const PricedGraph::Edge& edge = priced.edges()[path.edges[i]];
    candidate.loads[edge.lane] += edge.us;
    candidate.total_us += edge.us;
    const bool is_lead = i == 0 && message_class.several_members &&
                         priced.graph().edges()[path.edges[i]].action.kind == ActionKind::kComp;
    if (!is_lead) candidate.chain.add(static_cast<Lane>(edge.lane), edge.us, i);
  }
  return add_candidate(message_class, candidate);
}

std::array<std::uint16_t, kPriceCount> SearchSpace::add_family(MessageClass& message_class,
                                                               EdgeFilter filter) {
  std::array<std::uint16_t, kPriceCount> by_price = message_class.by_price;
  std::vector<CheapestPaths> cheapest;
  cheapest.reserve(message_class.graphs.size());
  for (const PricedGraph& graph : message_class.graphs) {
    cheapest.push_back(cheapest_paths(graph, filter));
  }
  std::vector<std::pair<std::size_t, std::size_t>> seen;  // graph and price of a candidate
  std::vector<std::uint16_t> index;
  for (std::size_t p = 0; p < kPriceCount; ++p) {
    std::size_t best = 0;
    for (std::size_t g = 1; g < cheapest.size(); ++g) {
      if (cheapest[g].price[p] < cheapest[best].price[p]) best = g;
    }
    const Path& path = cheapest[best].path[p];
    if (path.count == 0) continue;
    std::size_t known = 0;
    while (known < seen.size() &&
           (seen[known].first != best || cheapest[best].path[seen[known].second] != path)) {
      ++known;
    }
    if (known == seen.size()) {
      seen.emplace_back(best, p);
      index.push_back(add_path(message_class, best, path));
    }
    by_price[p] = index[known];
  }
  return by_price;
}

void SearchSpace::widen(MessageClass& message_class) {
  if (message_class.widened) return;
  message_class.widened = true;
  for (std::size_t graph = 0; graph < message_class.graphs.size(); ++graph) {
    for (const Path& path : message_class.graphs[graph].undominated()) {
      (void)add_path(message_class, graph, path);
    }
  }
}

std::optional<std::uint16_t> SearchSpace::index_of(std::uint32_t message, const Choice& choice) {
  MessageClass& message_class = class_of(message);
  for (std::size_t graph = 0; graph < message_class.graphs.size(); ++graph) {
    if (!choice.option.is_raw() && message_class.codecs[graph] != choice.codec) continue;
    // Follow the option through the graph.
    const auto edges = message_class.graphs[graph].graph().edges();
    Path path;
    std::uint32_t state = OptionGraph::kStart;
    for (const Action& action : choice.option.actions()) {
      const auto found = std::ranges::find_if(edges, [&](const OptionGraph::Edge& edge) {
        return edge.from == state && edge.action == action;
      });
      if (found == edges.end()) break;
      path.edges[path.count++] = static_cast<std::uint16_t>(found - edges.begin());
      state = found->to;
    }
    if (path.count == choice.option.actions().size()) return add_path(message_class, graph, path);
  }
  return std::nullopt;
}

Lead SearchSpace::lead(std::uint32_t tensor, const Candidate& candidate) const {
  const Action& first = candidate.choice.option.actions().front();
  if (first.kind != ActionKind::kComp || members_[buckets_.of_tensor[tensor]].size() == 1)
    return {};
  const std::size_t row =
      2 * std::size_t{candidate.choice.codec} + static_cast<std::size_t>(first.place);
  return {.lane = first.place == Place::kDevice ? Lane::kDevice : Lane::kHost,
          .us = lead_us_[row * setting_.trace.tensors.size() + tensor]};
}

template <class Least>
std::vector<Loads> SearchSpace::least_by_tensor(Least least) const {
  std::vector<Loads> by_tensor(setting_.trace.tensors.size());
  for (const MessageClass& message_class : classes_) {
    Loads of_class{};
    for (const Lane lane : {Lane::kIntra, Lane::kInter}) {
      double us = std::numeric_limits<double>::infinity();
      for (const PricedGraph& graph : message_class.graphs) us = std::min(us, least(graph, lane));
      of_class[static_cast<std::size_t>(lane)] = us;
    }
    for (const std::uint32_t message : message_class.messages) {
      by_tensor[members_[message].back()] = of_class;
    }
  }
  return by_tensor;
}

double SearchSpace::bound_us() const {
  return plan::bound_us(setting_.trace, least_by_tensor([](const PricedGraph& graph, Lane lane) {
                          return graph.least_us(lane);
                        }));
}

double SearchSpace::fused_bound_us() const {
  const auto bytes = least_by_tensor(
      [](const PricedGraph& graph, Lane lane) { return graph.least_bytes_us(lane); });
  const auto latencies = least_by_tensor(
      [](const PricedGraph& graph, Lane lane) { return graph.least_latency_us(lane); });
  Loads least = latencies.front();
  for (const Loads& of_tensor : latencies) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      least[lane] = std::min(least[lane], of_tensor[lane]);
    }
  }
  return plan::bound_us(setting_.trace, bytes, least);
}

}  // namespace gradpress::plan
