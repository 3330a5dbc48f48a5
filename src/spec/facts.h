// The one table of codec facts: all that is true of a kind of codec without running it. Planner,
// engine, command line and front ends ask here and know no codec by name.
#pragma once

#include <gradpress/shape.h>
#include <gradpress/traits.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "spec/spec.h"

namespace gradpress::codec {

enum class Family : std::uint8_t {
  kRaw,        ///< the gradient's own bytes
  kCast,       ///< every element in a narrower float
  kSign,       ///< a bit per element
  kQuantizer,  ///< a few bits per element
  kSparse,     ///< some elements, nothing of the others; takes momentum correction
  kLowRank,    ///< factors of a whole matrix; only their sum over all workers can be decoded
};
std::string_view to_text(Family family);

/// What follows the name's colon.
enum class Value : std::uint8_t { kNothing, kRatio, kBits, kRank, kChunk, kMomentum };
std::string_view to_text(Value value);

/// What an encode's random numbers must be.
enum class Draws : std::uint8_t {
  kNone,
  kAny,     ///< unbiased rounding: workers that draw independently average its variance out
  kShared,  ///< every worker draws the same numbers, or payloads do not fit together
};
std::string_view to_text(Draws draws);

/// One "key=number" a codec takes, and the range it must lie in; or "key=word".
struct Key {
  std::string_view name;
  double least;
  double most;
  bool whole;
  double (*get)(const Spec&);
  void (*set)(Spec&, double);
  std::span<const std::string_view> words = {};  ///< a word stands for its place in this list
};

struct Facts {
  Kind kind;
  std::string_view name;
  Family family;
  Value value = Value::kNothing;
  std::span<const Key> keys = {};
  std::string_view usage;    ///< "topk:RATIO"
  std::string_view example;  ///< "topk:0.01"
  std::string_view about;
  /// The codec that a model's output layer takes instead, where the method's authors say so.
  std::string_view for_output = {};
  Draws draws = Draws::kNone;
  unsigned cycle = 1;  ///< kinds of steps that take turns and send different bytes
  /// Of every codec of the kind; traits_of() knows what parameters change.
  Traits traits = {};
  /// Payload bytes of a shape, as payload_bytes().
  std::uint64_t (*bytes)(const Spec& spec, const Shape& shape, unsigned round);
  /// The most entries of `elements`, of which `kept` is k; null: k.
  std::uint64_t (*most)(const Spec& spec, std::uint64_t elements, std::uint64_t kept) = nullptr;
  /// What parameters change in the traits; null: nothing.
  void (*adjust)(const Spec& spec, Traits& traits) = nullptr;

  bool encodes() const { return family != Family::kRaw; }
  bool is_sparse() const { return family == Family::kSparse; }
  bool is_low_rank() const { return family == Family::kLowRank; }
  bool alternates() const { return cycle > 1; }
};

/// All rows, in the order that help texts list them.
std::span<const Facts> all_facts();
const Facts& facts_of(Kind kind);
inline const Facts& facts_of(const Spec& spec) { return facts_of(spec.kind); }
/// By name, without parameters; null when there is none.
const Facts* find_facts(std::string_view name);
/// Of the codec that a text such as "topk:0.01" names; null when there is none.
const Facts* facts_of_text(std::string_view text);

Traits traits_of(const Spec& spec);

}  // namespace gradpress::codec
