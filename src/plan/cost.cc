#include "plan/cost.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "spec/facts.h"

namespace gradpress::plan {

namespace {

double ceil_log2(std::uint64_t x) { return static_cast<double>(std::bit_width(x - 1)); }

std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// How many α and how many β·bytes a collective costs.
struct Factors {
  double alphas;
  double betas;
};

/// On a group of p, with m workers behind one link.
Factors group_factors(Collective collective, std::uint64_t p, double m) {
  const double members = static_cast<double>(p);
  const double others = members - 1.0;
  switch (collective) {
    case Collective::kAllReduce:
      return {2.0 * others, 2.0 * others / members * m};
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return {others, others / members * m};
    case Collective::kAllGather:
    case Collective::kGather:
      return {others, others * m};
    case Collective::kReduce:
    case Collective::kBroadcast:
      return {ceil_log2(p), ceil_log2(p) * m};
  }
  return {};
}

/// All workers of several machines in one group: both edges of a machine on its one card.
Factors flat_factors(Collective collective, const Topology& topology) {
  const double w = static_cast<double>(topology.world());
  const double k = topology.workers;
  switch (collective) {
    case Collective::kAllToAll:
      return {w - 1.0, k * (w - k) / w};
    case Collective::kGather:
      return {w - 1.0, w - k};
    case Collective::kReduce:
    case Collective::kBroadcast:
      return {ceil_log2(topology.world()), ceil_log2(topology.machines)};
    default:
      return group_factors(collective, topology.world(), 1.0);
  }
}

/// A low-rank codec's time at a rank that may not have been measured.
double at_rank_us(std::span<const RankedCurve> by_rank,
                  double (CostCurve::*time)(std::uint64_t) const, std::uint64_t elements,
                  std::uint64_t rank) {
  const auto at = [&](std::size_t i) { return (by_rank[i].curve->*time)(elements); };
  const auto wanted = static_cast<double>(rank);
  if (by_rank.size() == 1) {
    const double launch = std::min(at(0), (by_rank[0].curve->*time)(0));
    return launch + (at(0) - launch) * wanted / by_rank[0].rank;
  }
  std::size_t right = 1;
  while (right + 1 < by_rank.size() && rank > by_rank[right].rank) ++right;
  const double below = by_rank[right - 1].rank;
  const double above = by_rank[right].rank;
  const double us =
      at(right - 1) + (at(right) - at(right - 1)) * (wanted - below) / (above - below);
  // Noise may make the higher rank the quicker one: no line leads below the nearest measurement's
  // share, or below the last one.
  if (wanted > above) return std::max(us, at(right));
  return std::max(us, wanted < below ? at(right - 1) * wanted / below : 0.0);
}

bool is_rooted(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kGather;
}

}  // namespace

void Chain::add(Lane lane, double time_us, std::size_t action) {
  if (time_us <= 0.0) return;
  us[count] = time_us;
  lanes[count] = lane;
  actions[count] = static_cast<std::uint8_t>(action);
  ++count;
}

Loads loads_of(const Chain& chain) {
  Loads loads{};
  for (std::size_t i = 0; i < chain.count; ++i) {
    loads[static_cast<std::size_t>(chain.lanes[i])] += chain.us[i];
  }
  return loads;
}

CommCosts::CommCosts(const Cluster& cluster) : topology_(cluster.topology) {
  const std::uint64_t k = topology_.workers;
  const std::uint64_t n = topology_.machines;
  for (std::size_t i = 0; i < kCollectives; ++i) {
    const auto collective = static_cast<Collective>(i);
    const auto line = [](Factors factors, const LinkModel::Rate& rate) {
      const double beta = 8.0 / (rate.gbps * 1000.0);
      return Line{.fixed_us = factors.alphas * rate.latency_us,
                  .us_per_byte = factors.betas * beta};
    };
    lines_[0][i] =
        n == 1 ? line(group_factors(collective, k, 1.0), cluster.intra.of(collective))
               : line(flat_factors(collective, topology_), cluster.inter.of_flat(collective));
    lines_[1][i] = line(group_factors(collective, k, 1.0), cluster.intra.of(collective));
    lines_[2][i] =
        line(group_factors(collective, n, static_cast<double>(k)), cluster.inter.of(collective));
    lines_[3][i] = line(group_factors(collective, n, 1.0), cluster.inter.of(collective));
  }
}

CommCosts::Line CommCosts::line(Phase phase, Collective collective, bool rooted) const {
  std::size_t row = 1;
  if (phase == Phase::kFlat) row = 0;
  if (phase == Phase::kInter) row = rooted ? 3 : 2;
  return lines_[row][static_cast<std::size_t>(collective)];
}

Lane CommCosts::lane(Phase phase) const {
  if (phase == Phase::kFlat) return topology_.machines == 1 ? Lane::kIntra : Lane::kInter;
  return phase == Phase::kInter ? Lane::kInter : Lane::kIntra;
}

std::uint32_t CommCosts::members(Phase phase) const {
  if (phase == Phase::kFlat) return static_cast<std::uint32_t>(topology_.world());
  return phase == Phase::kInter ? topology_.machines : topology_.workers;
}

CodecCurves curves_of(const Cluster& cluster, const codec::Spec& spec) {
  CodecCurves curves{.at = {cluster.costs(spec, Place::kDevice), cluster.costs(spec, Place::kHost)},
                     .decode_costs = cluster.decode_costs};
  if (codec::facts_of(spec).is_low_rank()) {
    curves.by_rank = {cluster.costs_by_rank(spec.kind, Place::kDevice),
                      cluster.costs_by_rank(spec.kind, Place::kHost)};
  }
  return curves;
}

double CodecCurves::encode_us(Place place, std::uint64_t elements, std::uint64_t rank) const {
  const auto slot = static_cast<std::size_t>(place);
  return by_rank[slot].empty() ? at[slot]->encode_us(elements)
                               : at_rank_us(by_rank[slot], &CostCurve::encode_us, elements, rank);
}

double CodecCurves::decode_us(Place place, std::uint64_t elements, std::uint64_t rank) const {
  const auto slot = static_cast<std::size_t>(place);
  return by_rank[slot].empty() ? at[slot]->decode_us(elements)
                               : at_rank_us(by_rank[slot], &CostCurve::decode_us, elements, rank);
}

std::vector<std::string> extrapolated_costs(const Cluster& cluster,
                                            std::span<const codec::Spec> codecs,
                                            std::span<const Tensor> tensors) {
  std::vector<std::string> sentences;
  for (const codec::Spec& spec : codecs) {
    if (!codec::facts_of(spec).is_low_rank()) continue;
    std::uint64_t most = 0;
    for (const Tensor& tensor : tensors) {
      most = std::max(most, codec::effective_rank(spec, tensor.shape));
    }
    for (const Place place : {Place::kDevice, Place::kHost}) {
      const auto by_rank = cluster.costs_by_rank(spec.kind, place);
      if (most == 0 || by_rank.empty()) continue;
      if (spec.rank >= by_rank.front().rank && most <= by_rank.back().rank) continue;
      const std::string text = codec::to_text(spec);
      std::string ranks;
      for (const RankedCurve& known : by_rank) {
        ranks.append(ranks.empty() ? "" : ", ").append(std::to_string(known.rank));
      }
      sentences.emplace_back(text)
          .append(": cluster ")
          .append(cluster.name)
          .append(" has costs at rank ")
          .append(ranks)
          .append("; those at rank ")
          .append(std::to_string(most))
          .append(" are extrapolated. Measure them: gradpress profile --codecs ")
          .append(text);
      break;
    }
  }
  return sentences;
}

TensorCosts::TensorCosts(const CommCosts& comm, CodecCurves curves, const codec::Spec* spec,
                         const Shape& shape, unsigned round)
    : comm_(comm), spec_(spec), curves_(std::move(curves)), shape_(shape), round_(round) {
  if (spec != nullptr) low_rank_ = codec::facts_of(*spec).is_low_rank();
  sizes_.reserve(32);
  add_size(shape.elements(), 1);
}

std::uint32_t TensorCosts::add_size(std::uint64_t elements, std::uint32_t parts) {
  Size size{
      .elements = elements, .parts = parts, .payload_bytes = {}, .encode_us = {}, .decode_us = {}};
  if (spec_ != nullptr) {
    for (unsigned round = 0; round < 2; ++round) {
      const std::uint64_t whole =
          codec::payload_bytes(*spec_, low_rank_ ? shape_ : Shape::flat(elements), round);
      size.payload_bytes[round] =
          static_cast<double>(low_rank_ ? 4 * ceil_div(whole / 4, parts) : whole);
    }
    const std::uint64_t rank = low_rank_ ? codec::effective_rank(*spec_, shape_) : 0;
    for (const Place place : {Place::kDevice, Place::kHost}) {
      const auto slot = static_cast<std::size_t>(place);
      constexpr double kNever = std::numeric_limits<double>::infinity();
      const bool known = curves_.at[slot] != nullptr;
      size.encode_us[slot] = known ? curves_.encode_us(place, elements, rank) : kNever;
      size.decode_us[slot] = known ? curves_.decode_us(place, elements, rank) : kNever;
    }
  }
  sizes_.push_back(size);
  return static_cast<std::uint32_t>(sizes_.size() - 1);
}

std::uint32_t TensorCosts::sharded(std::uint32_t size, Phase phase) {
  const auto slot = static_cast<std::size_t>(phase);
  if (sizes_[size].shard[slot] == 0) {
    const std::uint32_t p = comm_.members(phase);
    const std::uint32_t made = add_size(ceil_div(sizes_[size].elements, p), sizes_[size].parts * p);
    sizes_[size].shard[slot] = made + 1;
  }
  return sizes_[size].shard[slot] - 1;
}

std::uint32_t TensorCosts::joined(std::uint32_t size, Phase phase) {
  const auto slot = static_cast<std::size_t>(phase);
  if (sizes_[size].join[slot] == 0) {
    const std::uint32_t p = comm_.members(phase);
    const std::uint32_t made = add_size(sizes_[size].elements * p, sizes_[size].parts / p);
    sizes_[size].join[slot] = made + 1;
  }
  return sizes_[size].join[slot] - 1;
}

double TensorCosts::bytes(const Held& held) const {
  const Size& size = sizes_[held.size];
  if (held.payloads == 0) return 4.0 * static_cast<double>(size.elements);
  const bool two_rounds = codec::facts_of(*spec_).traits.rounds == 2;
  const unsigned round = two_rounds ? held.encodes - 1U : round_;
  return static_cast<double>(held.payloads) * size.payload_bytes[round];
}

TensorCosts::Price TensorCosts::apply(const Action& action, Held& held) {
  if (action.kind != ActionKind::kComm) {
    const Size& size = sizes_[held.size];
    const auto place = static_cast<std::size_t>(action.place);
    const Lane lane = action.place == Place::kDevice ? Lane::kDevice : Lane::kHost;
    if (action.kind == ActionKind::kComp) {
      held.payloads = 1;
      ++held.encodes;
      return {lane, size.encode_us[place]};
    }
    const bool per_payload = curves_.decode_costs == DecodeCosts::kPerPayload;
    const double us =
        (per_payload ? static_cast<double>(held.payloads) : 1.0) * size.decode_us[place];
    held.payloads = 0;
    held.encodes = 0;
    return {lane, us};
  }
  const CommCosts::Line line = comm_.line(action.phase, action.collective, held.rooted);
  const double us = line.fixed_us + line.us_per_byte * bytes(held);
  const std::uint32_t p = comm_.members(action.phase);
  switch (action.collective) {
    case Collective::kReduceScatter:
      held.size = sharded(held.size, action.phase);
      break;
    case Collective::kAllToAll:
      held.size = sharded(held.size, action.phase);
      held.payloads *= p;
      break;
    case Collective::kGather:
      held.payloads *= p;
      break;
    case Collective::kAllGather:
      if (action.step == Step::kSecond) {
        held.size = joined(held.size, action.phase);
      } else {
        held.payloads *= p;
      }
      break;
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      break;
  }
  if (action.phase == Phase::kIntra1) held.rooted = is_rooted(action.collective);
  return {comm_.lane(action.phase), us};
}

Pricer::Pricer(const CommCosts& comm, const Cluster& cluster, const codec::Spec* spec,
               const Shape& shape)
    : first_(comm, spec == nullptr ? CodecCurves{} : curves_of(cluster, *spec), spec, shape) {
  if (spec != nullptr && codec::facts_of(*spec).alternates()) {
    second_.emplace(comm, curves_of(cluster, *spec), spec, shape, 1);
  }
}

TensorCosts::Price Pricer::apply(const Action& action, Held& held) {
  TensorCosts::Price price = first_.apply(action, held.first);
  if (second_) price.us = 0.5 * (price.us + second_->apply(action, held.second).us);
  return price;
}

Chain Pricer::chain(const Option& option) {
  Chain chain;
  Held held;
  std::size_t index = 0;
  for (const Action& action : option.actions()) {
    const TensorCosts::Price price = apply(action, held);
    chain.add(price.lane, price.us, index++);
  }
  return chain;
}

}  // namespace gradpress::plan
