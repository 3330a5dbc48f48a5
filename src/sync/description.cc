#include "sync/description.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "plan/fit.h"
#include "spec/facts.h"
#include "sync/holdings.h"

namespace gradpress::sync {

namespace {

using plan::Action;
using plan::ActionKind;
using plan::Collective;

/// Whether collectives sum all payloads of the option, and so any floats beside them.
bool sums_all_payloads(const plan::Option& option) {
  return std::ranges::all_of(option.actions(), [](const Action& action) {
    return action.kind != ActionKind::kComm || action.step == plan::Step::kSecond ||
           (action.encoded && (action.collective == Collective::kAllReduce ||
                               action.collective == Collective::kReduceScatter ||
                               action.collective == Collective::kReduce));
  });
}

std::string text_of(const MessageSpec& spec, const std::vector<codec::Spec>& codecs,
                    const comm::Topology& topology) {
  const auto number = [](std::uint64_t value) { return std::to_string(value); };
  std::string text = "gradpress-message-1\n";
  text += "topology " + number(topology.machines) + " x " + number(topology.workers_per_machine);
  text += "\noption " + plan::to_text(spec.option);
  text += "\nseed " + number(spec.seed);
  text += std::string("\nfeedback ") +
          (!spec.feedback ? "as the codec needs" : (*spec.feedback ? "yes" : "no"));
  if (spec.momentum) {
    char numbers[64];
    (void)std::snprintf(numbers, sizeof numbers, "%a, clip %a", spec.momentum->momentum,
                        spec.momentum->clip_norm);
    text += std::string("\nmomentum ") + numbers + (spec.momentum->nesterov ? ", nesterov" : "") +
            (spec.momentum->masking ? ", masking" : "");
  }
  for (std::size_t i = 0; i < spec.members.size(); ++i) {
    const Member& member = spec.members[i];
    text += "\nmember " + number(i) + ": tensor " + number(member.tensor) + " " + member.name +
            " " + member.shape.to_string() + " " + codec::to_text(codecs[i]);
  }
  return text + "\n";
}

/// Why this member cannot be in the message; empty when it can.
std::string objection(const MessageSpec& spec, const std::vector<codec::Spec>& codecs,
                      std::size_t index, const plan::Topology& topology) {
  if (spec.option.is_raw())
    return plan::why_not(spec.option, {}, spec.members[index].shape, topology);
  const auto encodes = [](const codec::Spec& codec) { return codec::facts_of(codec).encodes(); };
  const auto main = std::ranges::find_if(codecs, encodes);
  if (main != codecs.end() && !encodes(codecs[index])) {
    const auto fit = plan::codec_fit(*main);
    const bool floats = codec::traits_of(*main).payload_type == DataType::kFloat32;
    if (fit.reducible && floats && sums_all_payloads(spec.option)) return {};
    return "none travels beside " + fit.name +
           " only where collectives sum all payloads, as float32";
  }
  if (main != codecs.end() && !(codecs[index] == *main)) {
    return "a message has one codec, and " + codec::to_text(codecs[index]) + " is beside " +
           codec::to_text(*main);
  }
  return plan::why_not(spec.option, plan::codec_fit(codecs[index]), spec.members[index].shape,
                       topology);
}

/// The codec of a member's first encode, made once for all members that have it.
Result<const Codec*> first_codec(const codec::MomentumOptions& momentum, const Codec& codec,
                                 std::map<std::string, const Codec*>& made, Described& found) {
  if (!codec::is_sparsifier(codec)) return &codec;
  const Codec*& first = made[codec.name()];
  if (first != nullptr) return first;
  auto inner = make_codec(codec.name());
  if (!inner) return tl::unexpected(inner.error());
  auto wrapped = codec::with_momentum(std::move(*inner), momentum);
  if (!wrapped) return tl::unexpected(wrapped.error());
  first = found.codecs.emplace_back(std::move(*wrapped)).get();
  return first;
}

/// Whose gradients the first encode's input is the sum of.
std::uint64_t summed_workers(const MessageSpec& spec, const comm::Topology& topology) {
  const std::vector<std::uint64_t> elements(1, spec.members.front().shape.elements());
  const Holdings holdings({.option = spec.option, .topology = topology, .elements = elements});
  const auto actions = spec.option.actions();
  const auto comp = std::ranges::find(actions, ActionKind::kComp, &Action::kind);
  return holdings.point(static_cast<std::size_t>(comp - actions.begin())).covers;
}

Status add_momentum(const MessageSpec& spec, const comm::Topology& topology, Described& found) {
  found.summed_workers = summed_workers(spec, topology);
  if (!spec.momentum) return {};
  codec::MomentumOptions options = *spec.momentum;
  options.workers = static_cast<std::uint32_t>(topology.workers() /
                                               std::max<std::uint64_t>(1, found.summed_workers));
  std::map<std::string, const Codec*> made;
  for (MemberCodec& member : found.members) {
    const auto first = first_codec(options, *member.codec, made, found);
    if (!first) return first.error();
    member.first = *first;
    found.momentum = found.momentum || member.first != member.codec;
  }
  return {};
}

/// Payload bytes of every round of a low-rank message; `none` goes with the last one.
std::vector<std::vector<std::size_t>> round_bytes(const MessageSpec& spec,
                                                  const std::vector<codec::Spec>& codecs,
                                                  unsigned rounds, unsigned parity) {
  std::vector<std::vector<std::size_t>> all(rounds);
  for (unsigned round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < codecs.size(); ++i) {
      const Shape& shape = spec.members[i].shape;
      const bool dense = !codec::facts_of(codecs[i]).encodes();
      const bool absent = dense && round + 1 < rounds;
      all[round].push_back(
          absent ? 0 : codec::payload_bytes(codecs[i], shape, rounds > 1 ? round : parity));
    }
  }
  return all;
}

}  // namespace

Result<Described> describe(const MessageSpec& spec, const comm::Topology& topology) {
  if (spec.members.empty()) return fail(Code::kInvalidArgument, "a message without tensors");
  Described found;
  std::vector<codec::Spec> specs;
  std::map<std::string, const Codec*> by_text;
  for (const Member& member : spec.members) {
    const auto parsed = codec::parse_spec(member.codec);
    if (!parsed) {
      return fail(Code::kInvalidArgument, "tensor ", member.name, ": ", parsed.error().message());
    }
    specs.push_back(*parsed);
    const Codec*& codec = by_text[codec::to_text(*parsed)];
    if (codec == nullptr) {
      auto made = make_codec(member.codec);
      if (!made) return tl::unexpected(made.error());
      codec = found.codecs.emplace_back(std::move(*made)).get();
    }
    found.members.push_back({.codec = codec,
                             .first = codec,
                             .shape = member.shape,
                             .tensor = member.tensor,
                             .name = member.name});
  }
  const plan::Topology shape{.machines = topology.machines,
                             .workers = topology.workers_per_machine};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (spec.members[i].shape.elements() > kMaxElements) {
      return fail(Code::kInvalidArgument, "tensor ", spec.members[i].name, ": shape ",
                  spec.members[i].shape.to_string(), " has more than ", kMaxElements,
                  " elements: split the tensor");
    }
    const std::string reason = objection(spec, specs, i, shape);
    if (!reason.empty()) {
      return fail(Code::kInvalidArgument, "tensor ", spec.members[i].name, ": ", reason);
    }
  }
  found.text = text_of(spec, specs, topology);
  found.tensor = spec.members.front().name;
  if (spec.members.size() > 1) {
    found.tensor += " and " + std::to_string(spec.members.size() - 1) + " more";
  }
  if (spec.option.is_raw()) return found;
  if (Status status = add_momentum(spec, topology, found); !status) return tl::unexpected(status);
  const auto main = std::ranges::find_if(
      specs, [](const codec::Spec& codec) { return codec::facts_of(codec).encodes(); });
  const Codec& codec = *found.members[static_cast<std::size_t>(main - specs.begin())].codec;
  found.low_rank = plan::codec_fit(*main).whole_tensor;
  found.alternates = codec::facts_of(*main).alternates();
  found.votes = codec.traits().combine == Combine::kVote;
  found.payload_type = codec.traits().payload_type;
  if (found.low_rank) {
    for (unsigned parity = 0; parity < (found.alternates ? 2U : 1U); ++parity) {
      found.vector_bytes.push_back(round_bytes(spec, specs, codec.traits().rounds, parity));
    }
  }
  return found;
}

}  // namespace gradpress::sync
