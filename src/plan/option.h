// One path of the decision tree: what happens to a tensor between its backward and its optimiser.
//
// An option is a sequence of actions: codec work (Comp, Decomp) at a place, and collectives in a
// phase. Its text is its actions joined by " > ":
//
//   reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@host > allgather@intra2
//
// The tree itself is a grammar (tree.h). Everything here is a value: no allocation but in texts.
#pragma once

#include <gradpress/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gradpress::plan {

/// Where a codec runs: on the device it competes with backward, on the host it does not.
enum class Place : std::uint8_t { kDevice, kHost };

enum class Collective : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kReduce,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kGather,
};
inline constexpr std::size_t kCollectives = 7;

/// Flat: one group of all workers. Hierarchical: inside the machine, between machines, inside
/// again.
enum class Phase : std::uint8_t { kFlat, kIntra1, kInter, kIntra2 };
inline constexpr std::size_t kPhases = 4;

enum class ActionKind : std::uint8_t { kComp, kDecomp, kComm };

/// A collective alone, or one half of a divisible pair (reduce-scatter, then all-gather).
enum class Step : std::uint8_t { kWhole, kFirst, kSecond };

struct Action {
  ActionKind kind = ActionKind::kComp;
  Place place = Place::kDevice;                    ///< Comp and Decomp only
  Collective collective = Collective::kAllReduce;  ///< Comm only, as are the next three
  Phase phase = Phase::kFlat;
  Step step = Step::kWhole;
  /// Whether payloads travel. An all-gather of payloads is the sum's raw material when whole
  /// (every worker's payload of the same elements) and a set of different shards when second.
  bool encoded = false;

  friend bool operator==(const Action&, const Action&) = default;
};

/// At most kMaxActions actions; the grammar's longest path has exactly as many.
class Option {
 public:
  static constexpr std::size_t kMaxActions = 12;

  Option() = default;
  /// Requires: at most kMaxActions actions.
  explicit Option(std::span<const Action> actions);

  std::span<const Action> actions() const { return {actions_.data(), count_}; }
  /// Comp actions.
  unsigned encodes() const;
  /// Whether any payload travels.
  bool is_raw() const { return encodes() == 0; }
  bool is_flat() const;
  /// The same path with all codec work at `place`.
  Option moved_to(Place place) const;

  friend bool operator==(const Option& a, const Option& b);

 private:
  std::array<Action, kMaxActions> actions_{};
  std::uint8_t count_ = 0;
};

std::string_view to_text(Place place);
std::string_view to_text(Collective collective);
std::string_view to_text(Phase phase);
std::string to_text(const Action& action);
std::string to_text(const Option& option);

/// Errors: kInvalidArgument, listing the known words.
Result<Place> parse_place(std::string_view text);
Result<Collective> parse_collective(std::string_view text);

/// The path a text describes. Blanks around ">" do not matter.
/// Errors: kInvalidArgument: an unknown word, or a path the (extended) tree does not have; the
/// message says at which action and what could stand there.
Result<Option> parse_option(std::string_view text);

}  // namespace gradpress::plan
