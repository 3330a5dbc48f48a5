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

std::uint64_t raw_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t cast_bytes(const Spec& spec, const Shape& shape, unsigned round);
/// A bit per element, in words of 32, behind so many floats.
template <unsigned kFloats>
std::uint64_t sign_bytes(const Spec& /*spec*/, const Shape& shape, unsigned /*round*/) {
  return 4 * ceil_div(shape.elements(), 32) + 4 * std::uint64_t{kFloats};
}
std::uint64_t pair_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t randomk_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t redsync_q_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t qsgd_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t terngrad_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t natural_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t int8_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t powersgd_bytes(const Spec& spec, const Shape& shape, unsigned round);
std::uint64_t acpsgd_bytes(const Spec& spec, const Shape& shape, unsigned round);

}  // namespace gradpress::codec
