// Payload sizes, as docs/wire_format.md gives them: the formulas that the table of facts names.
// Callers ask payload_bytes().
#pragma once

#include <gradpress/shape.h>

#include <cstdint>

#include "spec/spec.h"

namespace gradpress::codec {

/// The number of parts of at most `part` that `whole` has.
constexpr std::uint64_t ceil_div(std::uint64_t whole, std::uint64_t part) {
  return whole / part + (whole % part != 0 ? 1 : 0);
}

/// Of so many values.
std::uint64_t value_bytes(ValueCode code, std::uint64_t count);
/// The Rice parameter of a shard's gaps: the smallest whose 2^bits reaches 0.4812·n/k, where one
/// bit more begins to cost more than it saves for gaps of independent entries (0.4812 = ln φ).
unsigned rice_bits(const Spec& spec, std::uint64_t elements);

std::uint64_t raw_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t cast_bytes(const Spec& spec, const Shape& shape, unsigned round);
/// A bit per element, in words of 32, behind so many floats.
template <unsigned kFloats>
std::uint64_t sign_bytes(const Spec& /*spec*/, const Shape& shape, unsigned /*round*/) {
  return 4 * ceil_div(shape.elements(), 32) + 4 * std::uint64_t{kFloats};
}
/// Of indices and values, coded or not.
std::uint64_t entry_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t randomk_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t redsync_q_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t qsgd_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t terngrad_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t natural_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t int8_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t kashin_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t powersgd_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t acpsgd_bytes(const Spec& spec, const Shape& shape, unsigned round);

}  // namespace gradpress::codec
