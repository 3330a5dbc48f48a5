// Payload bytes read a second time, element by element in double, straight from
// docs/wire_format.md: what the library's decoders and the golden files are held against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "spec/spec.h"

namespace gradpress::test {

/// Rounded to nearest even, saturated at ±65504.
std::uint16_t half_bits(double value);
double half_value(std::uint16_t bits);
/// Rounded to nearest even. Requires: |value| below the largest bfloat16.
std::uint16_t bfloat_bits(double value);
double bfloat_value(std::uint16_t bits);

/// The random words of one (seed, tensor, step, site, shard), and a source where there is one.
class Words {
 public:
  struct Origin {
    std::uint64_t seed = 0;
    std::uint64_t tensor = 0;
    std::uint64_t step = 0;
    std::uint64_t site = 0;
    std::uint64_t shard = 0;
    std::optional<std::uint64_t> source = {};
  };
  explicit Words(const Origin& origin);
  std::uint32_t operator[](std::uint64_t index) const;
  /// In [0, 1).
  double uniform(std::uint64_t index) const;

 private:
  std::uint64_t key_;
};

/// Little-endian words at any offset. Requires: they lie inside.
std::uint32_t read_u32(std::span<const std::byte> bytes, std::size_t at);
double read_f32(std::span<const std::byte> bytes, std::size_t at);
bool read_bit(std::span<const std::byte> bytes, std::size_t first_byte, std::uint64_t bit);

/// The index randomk takes from stratum `j` of `k`.
std::uint64_t stratum_index(const Words& words, std::uint64_t j, std::uint64_t k, std::uint64_t n);
/// A sparse payload's entry. `code` is 0…3 where values have 2 bits, else 0.
struct Entry {
  std::uint64_t index = 0;
  double value = 0.0;
  unsigned code = 0;
};
/// A sparse payload's entries, of a shard of n elements. Empty if its length does not fit them.
std::vector<Entry> read_entries(const codec::Spec& spec, std::span<const std::byte> bytes,
                                std::uint64_t n);
/// `count` values of their own, from `first` on; indices are left 0.
std::vector<Entry> read_values(codec::ValueCode code, std::span<const std::byte> bytes,
                               std::size_t first, std::size_t count);
/// The integer that qsgd and int8 store for element `i`.
int read_code(const codec::Spec& spec, std::span<const std::byte> bytes, std::uint64_t n,
              std::uint64_t i);

/// kashin's payload: through the inverse of its frame.
std::vector<double> read_kashin(const codec::Spec& spec, std::span<const std::byte> bytes,
                                std::uint64_t n, const Words& words);

/// What a shard's payload stands for, element by element. Requires: a payload that an encode made;
/// not a low-rank codec's factor.
std::vector<double> read_payload(const codec::Spec& spec, std::span<const std::byte> bytes,
                                 std::uint64_t n, const Words& words);

/// How far a decoder in single precision may be from each of those, beyond one rounding of it.
std::vector<double> payload_rounding(const codec::Spec& spec, std::span<const std::byte> bytes,
                                     std::uint64_t n);

}  // namespace gradpress::test
