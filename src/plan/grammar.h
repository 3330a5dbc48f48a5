// The decision tree as data: symbols and productions. Private to option.cc and tree.cc.
//
//   T1 (2nd intra step, raw in)        = Comm2 End             | Comp Comm2C Decomp End
//   T2 (2nd intra step, encoded in)    = Comm2C Decomp End     | Decomp T1
//   T5 (2nd inter step + rest, raw in) = Comm2 T1              | Comp Comm2C T2
//   T3 (inter + rest, raw in)          = Comm T1               | Comm1 T5
//   T4 (inter + rest, encoded in)      = CommC T2              | Comm1C ( Comm2C T2 | Decomp T5 )
//   Flat = Comm End | Comm1 T1 | Comp ( CommC Decomp End | Comm1C T2 )
//   Hier = Comm1 ( T3 | Comp T4 ) | Comp Comm1C ( T4 | Decomp ( T3 | Comp T4 ) )
//
// The extended tree adds CommS and Comm1S: the collectives that add numbers (all-reduce; reduce-
// scatter, reduce) on a single payload of a reducible codec. They stand wherever CommC and Comm1C
// do, as long as the worker holds one payload and not several. Its Rounds are Power-SGD's paths.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "plan/option.h"

namespace gradpress::plan {

enum class Symbol : std::uint8_t {
  kEnd,
  kFlat,
  kFlatEncoded,
  kHier,
  kHierRaw,      ///< before the inter phase, raw in
  kHierEncoded,  ///< before the inter phase, encoded in
  kT1,
  kT2,
  kT3,
  kT4,
  kT4Second,  ///< the second inter step, encoded in
  kT5,
  // Two-round codecs: the first round's sum, then the second's.
  kRoundsFlat,
  kRoundsFlat1,
  kRoundsFlat2,
  kRoundsHier,
  kRoundsHierInter1,
  kRoundsHierIntra1,
  kRoundsHierAgain,
  kRoundsHierInter2,
  kRoundsHierIntra2,
};

enum class Terminal : std::uint8_t {
  kComp,
  kDecomp,
  kComm,
  kComm1,
  kComm2,
  kCommC,
  kComm1C,
  kComm2C,
  kCommS,
  kComm1S,
};

struct Production {
  Symbol from;
  std::array<Terminal, 6> terminals;
  std::uint8_t count;
  Symbol to;
};

std::span<const Production> productions();

/// What a path has fixed so far.
struct PathState {
  Phase outer_phase = Phase::kFlat;  ///< of T1 and T2: kFlat or kIntra2
  bool single = false;               ///< encoded, and one payload: a sum is possible
  /// The second step of each pair is fixed by its first.
  Collective outer_second = Collective::kAllGather;
  Collective inter_second = Collective::kAllGather;
};

/// The phase in which a communication of a symbol's production runs.
Phase phase_of(Symbol symbol, const PathState& state);

/// The choices a terminal leaves in a state, in a fixed order; at most two.
/// `state.single` decides whether the summing terminals have any.
struct Choices {
  std::array<Action, 2> actions;
  std::uint8_t count = 0;
};
Choices choices(Terminal terminal, Phase phase, const PathState& state);

/// The state after `action`, which `terminal` allowed.
PathState advance(PathState state, Terminal terminal, const Action& action);

}  // namespace gradpress::plan
