#include "plan/grammar.h"

namespace gradpress::plan {

namespace {

using enum Symbol;
using enum Terminal;

// In the order in which options are listed: raw before encoded, indivisible before divisible.
constexpr std::array kProductions = {
    Production{kFlat, {kComm}, 1, kEnd},
    Production{kFlat, {kComm1}, 1, kT1},
    Production{kFlat, {kComp}, 1, kFlatEncoded},
    Production{kFlatEncoded, {kCommC, kDecomp}, 2, kEnd},
    Production{kFlatEncoded, {kCommS, kDecomp}, 2, kEnd},
    Production{kFlatEncoded, {kComm1C}, 1, kT2},
    Production{kFlatEncoded, {kComm1S}, 1, kT2},
    Production{kHier, {kComm1}, 1, kHierRaw},
    Production{kHier, {kComp, kComm1C}, 2, kHierEncoded},
    Production{kHier, {kComp, kComm1S}, 2, kHierEncoded},
    Production{kHierRaw, {}, 0, kT3},
    Production{kHierRaw, {kComp}, 1, kT4},
    Production{kHierEncoded, {}, 0, kT4},
    Production{kHierEncoded, {kDecomp}, 1, kHierRaw},
    Production{kT1, {kComm2}, 1, kEnd},
    Production{kT1, {kComp, kComm2C, kDecomp}, 3, kEnd},
    Production{kT2, {kComm2C, kDecomp}, 2, kEnd},
    Production{kT2, {kDecomp}, 1, kT1},
    Production{kT3, {kComm}, 1, kT1},
    Production{kT3, {kComm1}, 1, kT5},
    Production{kT4, {kCommC}, 1, kT2},
    Production{kT4, {kCommS}, 1, kT2},
    Production{kT4, {kComm1C}, 1, kT4Second},
    Production{kT4, {kComm1S}, 1, kT4Second},
    Production{kT4Second, {kComm2C}, 1, kT2},
    Production{kT4Second, {kDecomp}, 1, kT5},
    Production{kT5, {kComm2}, 1, kT1},
    Production{kT5, {kComp, kComm2C}, 2, kT2},
    Production{kRoundsFlat, {kComp}, 1, kRoundsFlat1},
    Production{kRoundsFlat1, {kCommS, kComp}, 2, kRoundsFlat2},
    Production{kRoundsFlat1, {kComm1S, kComm2C, kComp}, 3, kRoundsFlat2},
    Production{kRoundsFlat2, {kCommS, kDecomp}, 2, kEnd},
    Production{kRoundsFlat2, {kComm1S, kComm2C, kDecomp}, 3, kEnd},
    Production{kRoundsHier, {kComp, kComm1S}, 2, kRoundsHierInter1},
    Production{kRoundsHierInter1, {kCommS}, 1, kRoundsHierIntra1},
    Production{kRoundsHierInter1, {kComm1S, kComm2C}, 2, kRoundsHierIntra1},
    Production{kRoundsHierIntra1, {kComm2C, kComp}, 2, kRoundsHierAgain},
    Production{kRoundsHierAgain, {kComm1S}, 1, kRoundsHierInter2},
    Production{kRoundsHierInter2, {kCommS}, 1, kRoundsHierIntra2},
    Production{kRoundsHierInter2, {kComm1S, kComm2C}, 2, kRoundsHierIntra2},
    Production{kRoundsHierIntra2, {kComm2C, kDecomp}, 2, kEnd},
};

Collective second_of(Collective first) {
  const bool rooted = first == Collective::kReduce || first == Collective::kGather;
  return rooted ? Collective::kBroadcast : Collective::kAllGather;
}

Choices comm_choices(Phase phase, Step step, bool encoded,
                     std::span<const Collective> collectives) {
  Choices result;
  for (const Collective collective : collectives) {
    result.actions[result.count++] = Action{.kind = ActionKind::kComm,
                                            .collective = collective,
                                            .phase = phase,
                                            .step = step,
                                            .encoded = encoded};
  }
  return result;
}

}  // namespace

std::span<const Production> productions() { return kProductions; }

Phase phase_of(Symbol symbol, const PathState& state) {
  switch (symbol) {
    case kT3:
    case kT4:
    case kT4Second:
    case kT5:
    case kRoundsHierInter1:
    case kRoundsHierInter2:
      return Phase::kInter;
    case kHier:
    case kRoundsHier:
    case kRoundsHierAgain:
      return Phase::kIntra1;
    case kRoundsHierIntra1:
    case kRoundsHierIntra2:
      return Phase::kIntra2;
    case kT1:
    case kT2:
      return state.outer_phase;
    default:
      return Phase::kFlat;
  }
}

Choices choices(Terminal terminal, Phase phase, const PathState& state) {
  const Collective second = phase == Phase::kInter ? state.inter_second : state.outer_second;
  switch (terminal) {
    case kComp:
    case kDecomp: {
      const ActionKind kind = terminal == kComp ? ActionKind::kComp : ActionKind::kDecomp;
      return {.actions = {Action{.kind = kind, .place = Place::kDevice},
                          Action{.kind = kind, .place = Place::kHost}},
              .count = 2};
    }
    case kComm:
      return comm_choices(phase, Step::kWhole, false, std::array{Collective::kAllReduce});
    case kComm1:
      return comm_choices(phase, Step::kFirst, false,
                          std::array{Collective::kReduceScatter, Collective::kReduce});
    case kComm2:
      return comm_choices(phase, Step::kSecond, false, std::array{second});
    case kCommC:
      return comm_choices(phase, Step::kWhole, true, std::array{Collective::kAllGather});
    case kComm1C:
      return comm_choices(phase, Step::kFirst, true,
                          std::array{Collective::kAllToAll, Collective::kGather});
    case kComm2C:
      return comm_choices(phase, Step::kSecond, true, std::array{second});
    case kCommS:
      if (!state.single) return {};
      return comm_choices(phase, Step::kWhole, true, std::array{Collective::kAllReduce});
    case kComm1S:
      if (!state.single) return {};
      return comm_choices(phase, Step::kFirst, true,
                          std::array{Collective::kReduceScatter, Collective::kReduce});
  }
  return {};
}

PathState advance(PathState state, Terminal terminal, const Action& action) {
  if (terminal == kComp) state.single = true;
  if (terminal == kDecomp || terminal == kCommC || terminal == kComm1C) state.single = false;
  if (action.kind != ActionKind::kComm) return state;
  if (action.phase == Phase::kIntra1) state.outer_phase = Phase::kIntra2;
  if (action.step == Step::kFirst) {
    auto& second = action.phase == Phase::kInter ? state.inter_second : state.outer_second;
    second = second_of(action.collective);
  }
  return state;
}

}  // namespace gradpress::plan
