#include "spec/sizes.h"

#include <algorithm>
#include <cmath>

namespace gradpress::codec {

namespace {

/// P in round 0, Q in round 1. Requires: a matrix.
std::uint64_t factor_bytes(std::uint64_t rank, const Shape& shape, unsigned round) {
  return 4 * rank * (round == 0 ? shape.rows() : shape.cols());
}

}  // namespace

std::uint64_t kept_elements(const Spec& spec, std::uint64_t elements) {
  if (elements == 0) return 0;
  const double product = std::ceil(spec.ratio * static_cast<double>(elements));
  return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(product), 1, elements);
}

std::uint64_t effective_rank(const Spec& spec, const Shape& shape) {
  if (!shape.is_matrix()) return 0;
  return std::min<std::uint64_t>({spec.rank, shape.rows(), shape.cols()});
}

std::uint64_t raw_bytes(const Spec& /*spec*/, const Shape& shape, unsigned /*round*/) {
  return 4 * shape.elements();
}

std::uint64_t cast_bytes(const Spec& /*spec*/, const Shape& shape, unsigned /*round*/) {
  return 2 * shape.elements();
}

std::uint64_t pair_bytes(const Spec& spec, const Shape& shape, unsigned /*round*/) {
  return 8 * kept_elements(spec, shape.elements());
}

std::uint64_t randomk_bytes(const Spec& spec, const Shape& shape, unsigned /*round*/) {
  return 4 * kept_elements(spec, shape.elements());
}

std::uint64_t redsync_q_bytes(const Spec& spec, const Shape& shape, unsigned /*round*/) {
  return 4 * kept_elements(spec, shape.elements()) + 4;
}

std::uint64_t qsgd_bytes(const Spec& spec, const Shape& shape, unsigned /*round*/) {
  return ceil_div(shape.elements() * spec.bits, 8) + 4 * ceil_div(shape.elements(), spec.block);
}

std::uint64_t terngrad_bytes(const Spec& /*spec*/, const Shape& shape, unsigned /*round*/) {
  return ceil_div(shape.elements(), 4) + 4;
}

std::uint64_t natural_bytes(const Spec& /*spec*/, const Shape& shape, unsigned /*round*/) {
  return shape.elements();
}

std::uint64_t int8_bytes(const Spec& spec, const Shape& shape, unsigned /*round*/) {
  return shape.elements() + 4 * ceil_div(shape.elements(), spec.block);
}

std::uint64_t powersgd_bytes(const Spec& spec, const Shape& shape, unsigned round) {
  const std::uint64_t rank = effective_rank(spec, shape);
  if (rank == 0) return round == 0 ? 4 * shape.elements() : 0;
  return factor_bytes(rank, shape, round);
}

std::uint64_t acpsgd_bytes(const Spec& spec, const Shape& shape, unsigned round) {
  const std::uint64_t rank = effective_rank(spec, shape);
  return rank == 0 ? 4 * shape.elements() : factor_bytes(rank, shape, round);
}

}  // namespace gradpress::codec
