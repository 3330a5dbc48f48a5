#include "plan/fit.h"

#include <algorithm>

#include "spec/facts.h"

namespace gradpress::plan {

namespace {

bool adds_numbers(const Action& action) {
  return action.collective == Collective::kAllReduce ||
         action.collective == Collective::kReduceScatter ||
         action.collective == Collective::kReduce;
}

/// Encodes in a row without a decode between them: the rounds of one encode.
unsigned rounds_of(const Option& option) {
  unsigned most = 0;
  unsigned row = 0;
  for (const Action& action : option.actions()) {
    if (action.kind == ActionKind::kDecomp) row = 0;
    if (action.kind == ActionKind::kComp) most = std::max(most, ++row);
  }
  return most;
}

std::string why_not_low_rank(const Option& option, const CodecFit& codec, const Shape& shape) {
  if (!shape.is_matrix()) {
    return codec.name + " compresses matrices, and " + shape.to_string() + " is none: send it raw";
  }
  if (option.actions().front().kind != ActionKind::kComp) {
    return codec.name + " encodes a worker's whole matrix, and here " +
           to_text(option.actions().front()) + " comes before its Comp";
  }
  for (const Action& action : option.actions().first(option.actions().size() - 1)) {
    if (action.kind == ActionKind::kDecomp) {
      return codec.name + " decodes once, at the end, from the sum over all workers";
    }
    if (action.kind == ActionKind::kComm && action.step != Step::kSecond && !adds_numbers(action)) {
      return codec.name + " needs the sum of the payloads, and " + to_text(action) +
             " only collects them";
    }
  }
  return {};
}

/// Workers whose gradients an action adds to those that are summed already.
std::uint64_t sums_over(const Action& action, const Topology& topology) {
  if (action.kind != ActionKind::kComm || action.step == Step::kSecond) return 1;
  switch (action.phase) {
    case Phase::kFlat:
      return topology.world();
    case Phase::kInter:
      return topology.machines;
    case Phase::kIntra1:
    case Phase::kIntra2:
      return topology.workers;
  }
  return 1;
}

/// A sign may be taken of one worker's gradient or of all workers' votes. That of some workers' sum
/// would make a majority of majorities, which depends on who is summed with whom.
std::string why_not_vote(const Option& option, const CodecFit& codec, const Topology& topology) {
  std::uint64_t summed = 1;
  bool voted = false;
  for (const Action& action : option.actions()) {
    if (action.kind == ActionKind::kComp) {
      if (summed != (voted ? topology.world() : 1)) {
        return codec.name + " is a vote of all workers, and here a " + to_text(action) +
               " takes the sign of the sum of " + std::to_string(summed) + " of " +
               std::to_string(topology.world()) +
               " workers, which changes the majority: use an option that encodes each worker's "
               "gradient and decodes before it sums, for example Comp@" +
               std::string(to_text(action.place)) + " > allgather@flat > Decomp@" +
               std::string(to_text(action.place));
      }
      voted = true;
    }
    summed *= sums_over(action, topology);
  }
  return {};
}

}  // namespace

CodecFit codec_fit(const codec::Spec& spec) {
  const codec::Facts& facts = codec::facts_of(spec);
  const Traits traits = codec::traits_of(spec);
  return {.name = codec::to_text(spec),
          .encodes = facts.encodes(),
          .reducible = facts.encodes() && traits.reducible,
          .whole_tensor = facts.is_low_rank(),
          .rounds = traits.rounds,
          .votes = traits.combine == Combine::kVote};
}

std::string why_not(const Option& option, const CodecFit& codec, const Shape& shape,
                    const Topology& topology) {
  if (topology.machines == 0 || topology.workers == 0) {
    return "a topology needs machines and workers, got " + std::to_string(topology.machines) +
           " × " + std::to_string(topology.workers);
  }
  if (option.actions().empty()) return "an option without actions synchronises nothing";
  if (option.is_raw()) return {};
  if (!codec.encodes) return codec.name + " makes no payloads: only raw options fit it";
  if (const unsigned rounds = rounds_of(option); rounds != codec.rounds) {
    return codec.name + " encodes in " + std::to_string(codec.rounds) + " round" +
           (codec.rounds == 1 ? "" : "s") + ", this option has " + std::to_string(rounds);
  }
  for (const Action& action : option.actions()) {
    if (action.kind == ActionKind::kComm && action.encoded && adds_numbers(action) &&
        !codec.reducible) {
      return codec.name + "'s payloads cannot be added up, and " + to_text(action) + " would";
    }
  }
  if (codec.votes) return why_not_vote(option, codec, topology);
  return codec.whole_tensor ? why_not_low_rank(option, codec, shape) : std::string();
}

}  // namespace gradpress::plan
