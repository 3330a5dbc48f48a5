#include "spec/sizes.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "spec/facts.h"

namespace gradpress::codec {

namespace {

/// A coded payload begins with the number of its entries.
constexpr std::uint64_t kCountBytes = 4;
constexpr std::uint64_t kTwoBitTableBytes = 16;

/// P in round 0, Q in round 1. Requires: a matrix.
std::uint64_t factor_bytes(std::uint64_t rank, const Shape& shape, unsigned round) {
  return 4 * rank * (round == 0 ? shape.rows() : shape.cols());
}

/// Of so many entries with u32 indices.
std::uint64_t plain_entry_bytes(const Spec& spec, std::uint64_t count) {
  if (!has_coded_entries(spec)) return 8 * count;
  return count == 0 ? 0 : kCountBytes + value_bytes(spec.value, count) + 4 * count;
}

}  // namespace

std::uint64_t kept_elements(const Spec& spec, std::uint64_t elements) {
  if (elements == 0) return 0;
  if (spec.chunk > 0) {
    return elements / spec.chunk * spec.chunk_kept +
           ceil_div(elements % spec.chunk * spec.chunk_kept, spec.chunk);
  }
  const double product = std::ceil(spec.ratio * static_cast<double>(elements));
  return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(product), 1, elements);
}

std::uint64_t effective_rank(const Spec& spec, const Shape& shape) {
  if (!shape.is_matrix()) return 0;
  const std::uint64_t rank = std::min<std::uint64_t>({spec.rank, shape.rows(), shape.cols()});
  // As PyTorch's hook compares: both factors together against the matrix.
  const double factors = static_cast<double>(rank) *
                         (static_cast<double>(shape.rows()) + static_cast<double>(shape.cols()));
  const bool pays = factors * spec.least_rate < static_cast<double>(shape.elements());
  return spec.least_rate == 0.0 || pays ? rank : 0;
}

std::uint64_t raw_bytes(const Spec& /*spec*/, const Shape& shape, unsigned /*round*/) {
  return 4 * shape.elements();
}

std::uint64_t cast_bytes(const Spec& /*spec*/, const Shape& shape, unsigned /*round*/) {
  return 2 * shape.elements();
}

std::uint64_t least_kept(const Spec& spec, std::uint64_t elements) {
  return facts_of(spec).traits.fixed_size ? kept_elements(spec, elements) : 0;
}

std::uint64_t most_kept(const Spec& spec, std::uint64_t elements) {
  const std::uint64_t kept = kept_elements(spec, elements);
  const Facts& facts = facts_of(spec);
  return facts.most == nullptr ? kept : facts.most(spec, elements, kept);
}

std::uint64_t value_bytes(ValueCode code, std::uint64_t count) {
  switch (code) {
    case ValueCode::kFp32:
      return 4 * count;
    case ValueCode::kFp16:
    case ValueCode::kBf16:
      return 2 * count;
    case ValueCode::kTwoBits:
      return count == 0 ? 0 : kTwoBitTableBytes + ceil_div(count, 4);
  }
  return 0;
}

unsigned rice_bits(const Spec& spec, std::uint64_t elements) {
  const std::uint64_t kept = kept_elements(spec, elements);
  if (kept == 0) return 0;
  return static_cast<unsigned>(std::bit_width(ceil_div(4812 * elements, 10000 * kept) - 1));
}

std::uint64_t entry_bytes(const Spec& spec, const Shape& shape, unsigned /*round*/) {
  const std::uint64_t n = shape.elements();
  const std::uint64_t count = most_kept(spec, n);
  if (spec.index == IndexCode::kPlain) return plain_entry_bytes(spec, count);
  if (count == 0) return 0;
  const unsigned bits = rice_bits(spec, n);
  return kCountBytes + value_bytes(spec.value, count) + ceil_div(count * bits, 8) +
         ceil_div(count + ((n - count) >> bits), 8);
}

std::uint64_t step_bytes(const Spec& spec, const Shape& shape) {
  const Facts& facts = facts_of(spec);
  const unsigned parts = std::max(facts.cycle, facts.traits.rounds);
  std::uint64_t sum = 0;
  for (unsigned part = 0; part < parts; ++part) sum += payload_bytes(spec, shape, part);
  return ceil_div(sum, facts.cycle);
}

double expected_bytes(const Spec& spec, const Shape& shape, unsigned round) {
  if (facts_of(spec).bytes != entry_bytes) {
    return static_cast<double>(payload_bytes(spec, shape, round));
  }
  const std::uint64_t n = shape.elements();
  const std::uint64_t count = kept_elements(spec, n);
  if (spec.index == IndexCode::kPlain || count == 0) {
    return static_cast<double>(plain_entry_bytes(spec, count));
  }
  const unsigned bits = rice_bits(spec, n);
  // A gap is geometric: it is a multiple of 2^bits long with this probability to go on.
  const double density = static_cast<double>(count) / static_cast<double>(n);
  const double more = std::pow(1.0 - density, std::exp2(bits));
  const double high_bits = static_cast<double>(count) * (1.0 + more / (1.0 - more));
  return static_cast<double>(kCountBytes + value_bytes(spec.value, count) +
                             ceil_div(count * bits, 8)) +
         high_bits / 8.0;
}

std::uint64_t randomk_bytes(const Spec& spec, const Shape& shape, unsigned /*round*/) {
  return value_bytes(spec.value, kept_elements(spec, shape.elements()));
}

std::uint64_t redsync_q_bytes(const Spec& spec, const Shape& shape, unsigned /*round*/) {
  return 4 * most_kept(spec, shape.elements()) + 4;
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

std::uint64_t kashin_bytes(const Spec& spec, const Shape& shape, unsigned /*round*/) {
  constexpr std::uint64_t kFrame = 1024;
  const auto block_bytes = [&spec](std::uint64_t coefficients) {
    return 4 + coefficients * spec.bits / 8;
  };
  const std::uint64_t rest = shape.elements() % kFrame;
  const std::uint64_t last =
      rest == 0 ? 0 : block_bytes(std::max<std::uint64_t>(16, std::bit_ceil(rest)));
  return shape.elements() / kFrame * block_bytes(kFrame) + last;
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
