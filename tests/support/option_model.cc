#include "support/option_model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "support/close_call.h"
#include "support/reading.h"

namespace gradpress::test {

namespace {

using plan::Action;
using plan::ActionKind;
using plan::Collective;

[[noreturn]] void impossible(const std::string& what) {
  throw std::runtime_error("option model: " + what);
}

void demand(bool holds, const char* what) {
  if (!holds) impossible(what);
}

void demand(const Status& status) {
  if (!status.is_ok()) impossible(status.to_string());
}

std::uint64_t end_of(const ShardRange& range) { return range.begin + range.count; }

/// Of all that add to it each must be new: a gradient counts once.
std::uint64_t united(std::uint64_t a, std::uint64_t b) {
  demand((a & b) == 0, "a worker's gradient is counted twice");
  return a | b;
}

/// Ranges side by side, in order; empty ones may stand anywhere.
ShardRange joined_range(const ShardRange& left, const ShardRange& right) {
  if (right.count == 0) return left;
  if (left.count == 0) return right;
  demand(end_of(left) == right.begin, "pieces that are put together do not touch");
  return {.begin = left.begin, .count = left.count + right.count};
}

std::size_t bytes_of_word(DataType type) { return type == DataType::kFloat32 ? 4 : 2; }

double read_word(DataType type, std::span<const std::byte> bytes, std::size_t at) {
  if (type == DataType::kFloat32) return read_f32(bytes, at);
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes.data() + at, sizeof bits);
  return type == DataType::kFloat16 ? half_value(bits) : bfloat_value(bits);
}

void write_word(DataType type, double value, std::span<std::byte> bytes, std::size_t at) {
  if (type == DataType::kFloat32) {
    const auto rounded = static_cast<float>(value);
    std::memcpy(bytes.data() + at, &rounded, sizeof rounded);
  } else {
    const std::uint16_t bits = type == DataType::kFloat16 ? half_bits(value) : bfloat_bits(value);
    std::memcpy(bytes.data() + at, &bits, sizeof bits);
  }
}

bool scatters(const Action& action) {
  return action.kind == ActionKind::kComm && (action.collective == Collective::kAllToAll ||
                                              action.collective == Collective::kReduceScatter);
}

/// The lowest rank whose gradient is in it: what tells the sums of different workers apart.
std::uint32_t source_of(std::uint64_t workers) {
  return static_cast<std::uint32_t>(std::countr_zero(workers));
}

bool rounds_at_random(codec::Kind kind) {
  return kind == codec::Kind::kNatural || kind == codec::Kind::kQsgd ||
         kind == codec::Kind::kTernGrad || kind == codec::Kind::kKashin;
}

}  // namespace

OptionModel::OptionModel(const OptionModelSpec& spec)
    : spec_(spec), closest_call_(std::numeric_limits<double>::infinity()) {
  demand(spec.topology.workers() <= 64, "more than 64 workers");
  auto codec = make_codec(spec.codec);
  if (!codec) impossible(codec.error().to_string());
  codec_ = std::move(*codec);
  codec_spec_ = *codec::parse_spec(spec.codec);
}

std::vector<float> OptionModel::step(const std::vector<std::vector<float>>& gradients,
                                     std::uint64_t step) {
  gradients_ = gradients;
  encodes_ = 0;
  held_.assign(spec_.topology.workers(), Holding{});
  for (unsigned worker = 0; worker < held_.size(); ++worker) {
    held_[worker] = {.form = Form::kRaw,
                     .range = {.begin = 0, .count = gradients[worker].size()},
                     .from = Workers{1} << worker,
                     .values = gradients[worker]};
  }
  const auto actions = spec_.option.actions();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == ActionKind::kComp) comp(i, step);
    if (actions[i].kind == ActionKind::kDecomp) decomp(step);
    if (actions[i].kind == ActionKind::kComm) comm(actions[i]);
  }
  return agreed_result();
}

std::vector<float> OptionModel::agreed_result() {
  const auto workers = static_cast<std::uint32_t>(held_.size());
  const Workers everyone = ~Workers{0} >> (64 - workers);
  for (const Holding& holding : held_) {
    demand(holding.form == Form::kRaw, "a worker ends without a raw gradient");
    demand(holding.range.count == spec_.shape.elements(), "a worker ends with a piece");
    demand(holding.from == everyone, "a worker ends without someone's gradient");
    demand(holding.values == held_[0].values, "workers end with unequal gradients");
  }
  std::vector<float> result = held_[0].values;
  if (codec_->traits().combine == Combine::kVote && !spec_.option.is_raw()) {
    demand(codec_->finish(*sites_.begin()->second.state, workers, result));
    return result;
  }
  for (float& value : result) value = static_cast<float>(static_cast<double>(value) / workers);
  return result;
}

// Comp: raw e → 1 payload of e, in all the shards that later scatters need, until the next Decomp.
void OptionModel::comp(std::size_t action, std::uint64_t step) {
  const std::uint32_t shards = shards_made(action);
  bool first_round = true;
  for (unsigned worker = 0; worker < held_.size(); ++worker) {
    if (held_[worker].form == Form::kNothing) continue;
    first_round = held_[worker].form == Form::kRaw;
    encode(worker, shards, first_round ? 0 : 1, step);
  }
  // A second round goes on with the first one's state: it is no encode of its own.
  if (first_round) ++encodes_;
}

std::uint32_t OptionModel::shards_made(std::size_t action) const {
  std::uint32_t shards = 1;
  for (const Action& later : spec_.option.actions().subspan(action + 1)) {
    if (later.kind != ActionKind::kComm) break;
    if (scatters(later)) shards *= static_cast<std::uint32_t>(groups(later.phase)[0].size());
  }
  return shards;
}

OptionModel::Site& OptionModel::site_of(unsigned worker, const Holding& holding,
                                        std::uint32_t shards) {
  Site& site = sites_[{worker, encodes_}];
  if (site.state != nullptr) {
    demand(site.from == holding.from && site.range.begin == holding.range.begin &&
               site.range.count == holding.range.count,
           "an encode meets another piece than in the step before");
    return site;
  }
  const bool whole = holding.range.count == spec_.shape.elements();
  auto state = codec_->make_state(
      {.shape = whole ? spec_.shape : Shape::flat(holding.range.count),
       .seed = spec_.seed,
       .tensor = spec_.tensor,
       .site = encodes_,
       .first_shard = holding.piece * shards,
       .source = source_of(holding.from),
       .feedback = codec_->traits().supports_feedback ? spec_.feedback : std::optional<bool>()});
  if (!state) impossible(state.error().to_string());
  site = {.state = std::move(*state), .range = holding.range, .from = holding.from};
  return site;
}

void OptionModel::encode(unsigned worker, std::uint32_t shards, unsigned round,
                         std::uint64_t step) {
  Holding& holding = held_[worker];
  // Low rank has no shards of the tensor: there the payload's numbers are divided.
  const bool shardable = codec_->traits().shardable;
  const std::uint32_t tensor_shards = shardable ? shards : 1;
  const std::vector<std::byte> reduced =
      round == 0 ? std::vector<std::byte>() : joined(holding.parcels);
  if (round == 1) {
    demand(!shardable, "only low rank has a second round");
    --encodes_;  // whose state the first round used
    holding.range = {.begin = 0, .count = spec_.shape.elements()};
    holding.from = Workers{1} << worker;
    holding.values = gradients_[worker];
  }
  const Site& site = site_of(worker, holding, tensor_shards);
  if (round == 1) ++encodes_;
  note_decisions(site, holding, tensor_shards, step);

  std::vector<std::byte> out(codec_->encode_bound(site.state->shape(), tensor_shards, round));
  std::vector<std::size_t> bytes(tensor_shards);
  const auto written = codec_->encode(*site.state,
                                      {.grad = holding.values,
                                       .shards = tensor_shards,
                                       .step = step,
                                       .round = round,
                                       .reduced = reduced},
                                      out, bytes);
  if (!written) impossible(written.error().to_string());

  holding.form = Form::kEncoded;
  holding.parcels.clear();
  std::size_t at = 0;
  for (std::uint32_t index = 0; index < shards; ++index) {
    Parcel parcel{.shard = holding.piece * shards + index, .from = holding.from};
    std::size_t length = 0;
    if (shardable) {
      parcel.range = shard_range(holding.range.count, shards, index);
      parcel.range.begin += holding.range.begin;
      length = bytes[index];
    } else {
      parcel.range = holding.range;
      const std::size_t word = bytes_of_word(codec_->traits().payload_type);
      length = shard_range(*written / word, shards, index).count * word;
    }
    const auto begin = out.begin() + static_cast<std::ptrdiff_t>(at);
    parcel.bytes.assign(begin, begin + static_cast<std::ptrdiff_t>(length));
    at += length;
    holding.parcels.push_back(std::move(parcel));
  }
  demand(at == *written, "shards do not add up to what was encoded");
  holding.values.clear();
}

void OptionModel::note_decisions(const Site& site, const Holding& raw, std::uint32_t shards,
                                 std::uint64_t step) {
  std::vector<float> x(raw.values.size());
  site.state->materialise(x);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += raw.values[i];
  for (std::uint32_t index = 0; index < shards; ++index) {
    const ShardRange shard = shard_range(x.size(), shards, index);
    const Words words({.seed = spec_.seed,
                       .tensor = spec_.tensor,
                       .step = step,
                       .site = encodes_,
                       .shard = std::uint64_t{raw.piece} * shards + index,
                       .source = rounds_at_random(codec_spec_.kind)
                                     ? std::optional<std::uint64_t>(source_of(raw.from))
                                     : std::nullopt});
    closest_call_ = std::min(
        closest_call_,
        test::closest_call(codec_spec_, std::span(x).subspan(shard.begin, shard.count), words));
  }
}

std::vector<std::byte> OptionModel::joined(const std::vector<Parcel>& parcels) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < parcels.size(); ++i) {
    demand(parcels[i].shard == i && parcels[i].from == parcels[0].from,
           "a payload is put together of parts that are not all its parts");
    bytes.insert(bytes.end(), parcels[i].bytes.begin(), parcels[i].bytes.end());
  }
  return bytes;
}

// Decomp: c payloads of e → raw e, summed.
void OptionModel::decomp(std::uint64_t step) {
  const std::uint32_t number = encodes_ - 1;
  const Traits& traits = codec_->traits();
  for (unsigned worker = 0; worker < held_.size(); ++worker) {
    Holding& holding = held_[worker];
    if (holding.form == Form::kNothing) continue;
    demand(holding.form == Form::kEncoded, "a Decomp meets no payloads");
    // Elementwise codecs read a payload with any state of the encode that made it; a worker that
    // was no root has none of its own. Low rank needs its own factors, and has them.
    State& state =
        *std::ranges::find_if(sites_, [&](const auto& site) {
           return site.first.second == number && (traits.shardable || site.first.first == worker);
         })->second.state;
    std::vector<Parcel> parcels = std::move(holding.parcels);
    if (!traits.shardable) {
      parcels = {
          Parcel{.range = parcels[0].range, .from = parcels[0].from, .bytes = joined(parcels)}};
    }
    std::map<std::uint32_t, Workers> from;  // by shard
    holding.range = {};
    for (const Parcel& parcel : parcels) {
      if (from.count(parcel.shard) == 0) holding.range = joined_range(holding.range, parcel.range);
      from[parcel.shard] = united(from[parcel.shard], parcel.from);
    }
    holding.from = from.begin()->second;
    for (const auto& [shard, workers] : from) {
      demand(workers == holding.from, "shards of one piece stand for different workers");
    }
    holding.values.assign(holding.range.count, 0.0F);
    for (const Parcel& parcel : parcels) {
      const std::size_t begin =
          parcel.range.count == 0 ? 0 : parcel.range.begin - holding.range.begin;
      const auto part = std::span(holding.values).subspan(begin, parcel.range.count);
      // Worker 0's own payload has the casting vote.
      const bool casting = traits.combine == Combine::kVote && number == 0 && parcel.from == 1;
      demand(codec_->decode(state,
                            {.payload = parcel.bytes,
                             .shard = parcel.shard,
                             .step = step,
                             .weight = 1.0F,
                             .casting = casting,
                             .begin = parcel.range.begin},
                            part));
    }
    // A vote is taken at the very end: the sum of the signs goes on.
    if (traits.combine == Combine::kMean) {
      const auto workers = static_cast<std::uint32_t>(std::popcount(holding.from));
      demand(codec_->finish(state, workers, holding.values));
    }
    holding.form = Form::kRaw;
  }
}

std::vector<OptionModel::Ranks> OptionModel::groups(plan::Phase phase) const {
  const comm::Topology& topology = spec_.topology;
  std::vector<Ranks> all;
  if (phase == plan::Phase::kFlat) {
    all.emplace_back();
    for (unsigned rank = 0; rank < topology.workers(); ++rank) all[0].push_back(rank);
  } else if (phase == plan::Phase::kInter) {
    for (unsigned place = 0; place < topology.workers_per_machine; ++place) {
      all.push_back(topology.inter_ranks(place));
    }
  } else {
    for (unsigned machine = 0; machine < topology.machines; ++machine) {
      all.push_back(topology.intra_ranks(machine * topology.workers_per_machine));
    }
  }
  return all;
}

void OptionModel::comm(const Action& action) {
  for (const Ranks& ranks : groups(action.phase)) {
    const auto holders = static_cast<std::size_t>(std::ranges::count_if(
        ranks, [&](unsigned rank) { return held_[rank].form != Form::kNothing; }));
    if (holders == 0) continue;  // not of a root: these wait
    if (action.collective == Collective::kBroadcast) {
      demand(holders == 1, "a broadcast of what others hold too");
      broadcast(ranks);
      continue;
    }
    demand(holders == ranks.size(), "a collective that some of its members bring nothing to");
    const Form form = action.encoded ? Form::kEncoded : Form::kRaw;
    for (const unsigned rank : ranks) {
      demand(held_[rank].form == form, "payloads where raw numbers are wanted, or the reverse");
      demand(
          action.collective == Collective::kAllGather || held_[rank].piece == held_[ranks[0]].piece,
          "members of a group hold different pieces");
    }
    action.encoded ? comm_encoded(action, ranks) : comm_raw(action, ranks);
  }
}

// broadcast → unchanged, everywhere.
void OptionModel::broadcast(const Ranks& ranks) {
  demand(held_[ranks[0]].form != Form::kNothing, "a broadcast whose root holds nothing");
  for (const unsigned rank : ranks) held_[rank] = held_[ranks[0]];
}

void OptionModel::comm_raw(const Action& action, const Ranks& ranks) {
  const auto members = static_cast<std::uint32_t>(ranks.size());
  if (action.collective == Collective::kAllGather) {
    // All-gather of raw e → raw p·e.
    Holding all{
        .form = Form::kRaw, .piece = held_[ranks[0]].piece / members, .from = held_[ranks[0]].from};
    for (const unsigned rank : ranks) {
      demand(held_[rank].from == all.from, "pieces of different workers are put together");
      all.range = joined_range(all.range, held_[rank].range);
      all.values.insert(all.values.end(), held_[rank].values.begin(), held_[rank].values.end());
    }
    for (const unsigned rank : ranks) held_[rank] = all;
    return;
  }

  Holding sum{.form = Form::kRaw, .piece = held_[ranks[0]].piece, .range = held_[ranks[0]].range};
  std::vector<double> values(sum.range.count, 0.0);
  for (const unsigned rank : ranks) {
    sum.from = united(sum.from, held_[rank].from);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += held_[rank].values[i];
  }
  sum.values.assign(values.begin(), values.end());

  for (std::uint32_t i = 0; i < members; ++i) {
    Holding& holding = held_[ranks[i]];
    switch (action.collective) {
      case Collective::kAllReduce:  // raw e → raw e
        holding = sum;
        break;
      case Collective::kReduceScatter: {  // raw e → raw e/p
        const ShardRange part = shard_range(sum.range.count, members, i);
        const auto begin = sum.values.begin() + static_cast<std::ptrdiff_t>(part.begin);
        holding = {.form = Form::kRaw,
                   .piece = sum.piece * members + i,
                   .range = {.begin = sum.range.begin + part.begin, .count = part.count},
                   .from = sum.from,
                   .values = {begin, begin + static_cast<std::ptrdiff_t>(part.count)}};
        break;
      }
      case Collective::kReduce:  // raw e → raw e at the root
        holding = i == 0 ? sum : Holding{};
        break;
      default:
        impossible("a raw " + plan::to_text(action));
    }
  }
}

std::vector<OptionModel::Parcel> OptionModel::summed(const std::vector<Parcel>& parcels) const {
  const DataType type = codec_->traits().payload_type;
  demand(type != DataType::kBytes, "payloads are summed that cannot be");
  std::map<std::uint32_t, std::vector<const Parcel*>> by_shard;
  for (const Parcel& parcel : parcels) by_shard[parcel.shard].push_back(&parcel);
  std::vector<Parcel> sums;
  for (const auto& [shard, parts] : by_shard) {
    Parcel sum{.shard = shard, .range = parts[0]->range, .bytes = parts[0]->bytes};
    for (const Parcel* part : parts) {
      sum.from = united(sum.from, part->from);
      demand(part->bytes.size() == sum.bytes.size(), "payloads of unequal length are summed");
    }
    for (std::size_t at = 0; at < sum.bytes.size(); at += bytes_of_word(type)) {
      double value = 0.0;
      for (const Parcel* part : parts) value += read_word(type, part->bytes, at);
      write_word(type, value, sum.bytes, at);
    }
    sums.push_back(std::move(sum));
  }
  return sums;
}

void OptionModel::comm_encoded(const Action& action, const Ranks& ranks) {
  const auto members = static_cast<std::uint32_t>(ranks.size());
  std::vector<Parcel> all;
  for (const unsigned rank : ranks) {
    all.insert(all.end(), held_[rank].parcels.begin(), held_[rank].parcels.end());
  }
  std::ranges::stable_sort(all, [](const Parcel& a, const Parcel& b) {
    return a.shard != b.shard ? a.shard < b.shard : a.from < b.from;
  });
  const bool adds = action.collective == Collective::kAllReduce ||
                    action.collective == Collective::kReduceScatter ||
                    action.collective == Collective::kReduce;
  if (adds) all = summed(all);

  const std::uint32_t piece = held_[ranks[0]].piece;
  const std::uint32_t shards = all.back().shard - all.front().shard + 1;
  for (std::uint32_t i = 0; i < members; ++i) {
    Holding& holding = held_[ranks[i]];
    holding = {.form = Form::kEncoded, .piece = piece};
    switch (action.collective) {
      // Whole: 1 payload of e → p payloads of e, to be summed. Second: a set of p shards comes out.
      case Collective::kAllGather:
        if (action.step == plan::Step::kSecond) holding.piece = piece / members;
        holding.parcels = all;
        break;
      case Collective::kAllReduce:  // one payload, summed
        holding.parcels = all;
        break;
      // c payloads of e → p·c payloads of e/p, each worker its shard; or one of e/p, summed.
      case Collective::kAllToAll:
      case Collective::kReduceScatter: {
        demand(shards % members == 0, "shards that cannot be divided among the group");
        const std::uint32_t first = all.front().shard;
        for (const Parcel& parcel : all) {
          if ((parcel.shard - first) / (shards / members) == i) holding.parcels.push_back(parcel);
        }
        holding.piece = piece * members + i;
        break;
      }
      // c payloads of e → p·c payloads of e at the root; or one, summed.
      case Collective::kGather:
      case Collective::kReduce:
        if (i == 0) holding.parcels = all;
        if (i != 0) holding = Holding{};
        break;
      default:
        impossible("an encoded " + plan::to_text(action));
    }
  }
}

bool OptionModel::conserves() const {
  return std::ranges::all_of(sites_, [this](const auto& site) {
    return codec_->name() == "none" || site.second.state->has_feedback();
  });
}

std::vector<double> OptionModel::unapplied() const {
  std::vector<double> total(spec_.shape.elements(), 0.0);
  // By encode, first element and workers: those of equal keys encoded the same numbers.
  std::map<std::tuple<std::uint32_t, std::uint64_t, Workers>, std::vector<float>> counted;
  for (const auto& [key, site] : sites_) {
    std::vector<float> residual(site.range.count);
    site.state->materialise(residual);
    if (residual.empty()) continue;
    const auto [found, is_new] =
        counted.try_emplace({key.second, site.range.begin, site.from}, residual);
    demand(found->second == residual, "replicas of one residual differ");
    for (std::size_t i = 0; is_new && i < residual.size(); ++i) {
      total[site.range.begin + i] += residual[i];
    }
  }
  return total;
}

}  // namespace gradpress::test
