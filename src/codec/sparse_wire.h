// Coded payloads of sparsifiers: entries in fewer bits than a u32 index and an f32 value, as the
// keys "index=" and "value=" of a codec's text say. Their bytes are in docs/wire_format.md.
#pragma once

#include <gradpress/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/rice.h"
#include "spec/spec.h"

namespace gradpress::codec {

/// Writes values.size() values. Requires: out.size() == value_bytes(code, values.size()); finite
/// values below 2^127.
void write_values(ValueCode code, std::span<const float> values, std::span<std::byte> out);

/// Reads values back, some at a time. The bytes may be hostile.
class ValueReader {
 public:
  /// Requires: bytes.size() == value_bytes(code, count of all values).
  ValueReader(ValueCode code, std::span<const std::byte> bytes);
  /// The next out.size() values. False if one is not finite. Requires: no more in all than there
  /// are.
  bool read(std::span<float> out);

 private:
  ValueCode code_;
  std::span<const std::byte> bytes_;  ///< of values not read yet; with 2 bits each, all codes
  std::array<float, 4> means_{};
  std::size_t next_code_ = 0;
};

/// The payload of one shard that a codec with coded entries makes.
class SparseWire {
 public:
  explicit SparseWire(const Spec& spec) : spec_(spec) {}

  /// Writes the entries and returns the bytes used; none for no entries.
  /// Requires: indices ascend strictly and are below `elements`; at most most_kept(spec, elements)
  /// entries; out.size() >= payload_bytes of the shard.
  std::size_t write(std::span<const std::uint32_t> indices, std::span<const float> values,
                    std::uint64_t elements, std::span<std::byte> out) const;

  /// dst[index] += weight · value, entry by entry. Hostile bytes: as Codec::decode.
  Status add(const std::string& codec, std::span<const std::byte> payload, float weight,
             std::span<float> dst) const;

  /// Takes what a payload carries out of the residual, where the entries' indices are still at
  /// hand. Requires: write() made the payload of these indices.
  void settle(std::span<const std::uint32_t> indices, std::span<const std::byte> payload,
              std::span<float> residual) const;

  /// values[index] ← 0 for each entry; returns Σ|values[index]| before. Requires: a payload that
  /// write() made of values.size() elements.
  double clear(std::span<const std::byte> payload, std::span<float> values) const;

 private:
  /// Entries that are read before they are used, so that their cache lines are on the way.
  static constexpr std::size_t kBlock = 256;

  struct Parts {
    std::size_t count = 0;
    std::span<const std::byte> values = {};
    std::span<const std::byte> low = {};  ///< or the plain indices
    std::span<const std::byte> high = {};
    unsigned bits = 0;
  };
  /// Errors: kCorruptPayload on a length that no payload of its count has, or a count that no
  /// payload has.
  Result<Parts> parts(const std::string& codec, std::span<const std::byte> payload,
                      std::uint64_t elements) const;
  /// visit(indices, values) for blocks of entries, all below `elements`.
  template <class Visit>
  Status for_blocks(const std::string& codec, std::span<const std::byte> payload,
                    std::span<const float> target, Visit visit) const;

  Spec spec_;
};

}  // namespace gradpress::codec
