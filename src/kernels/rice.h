// Ascending indices as Rice-coded gaps, in two streams of bits: the low bits of every gap, and the
// rest of it in unary.
//
// The gap of entry j is index[j] − index[j−1] − 1 (index[−1] = −1). Its lowest `bits` bits stand in
// the low stream, entry after entry; gap >> bits zeros and a one stand in the high stream. Both
// fill bytes from their lowest bit on; bits behind the last are 0. Nothing here allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradpress::kernels {

/// Bytes of the low stream.
constexpr std::uint64_t rice_low_bytes(std::uint64_t entries, unsigned bits) {
  return (entries * bits + 7) / 8;
}
/// The most bytes the high stream has: the gaps of all entries sum up to elements − entries at
/// most.
constexpr std::uint64_t rice_high_bound(std::uint64_t entries, std::uint64_t elements,
                                        unsigned bits) {
  return (entries + ((elements - entries) >> bits) + 7) / 8;
}

/// Writes both streams and returns the bytes of the high one, whose last byte is not 0.
/// Requires: indices ascend strictly and are not empty; bits < 32; low.size() == rice_low_bytes;
/// high.size() >= rice_high_bound.
std::size_t rice_write(std::span<const std::uint32_t> indices, unsigned bits,
                       std::span<std::byte> low, std::span<std::byte> high);

/// Reads indices back, some at a time. The bytes may be hostile: nothing outside them is read.
class RiceReader {
 public:
  /// Requires: low.size() == rice_low_bytes(entries, bits); high.size() <= rice_high_bound(entries,
  /// elements, bits), so that no index can wrap; bits < 32.
  RiceReader(std::span<const std::byte> low, std::span<const std::byte> high, unsigned bits)
      : low_(low), high_(high), bits_(bits) {}

  /// The next out.size() indices, strictly ascending. False if the streams end before.
  /// Requires: no more in all than there are entries; out.size() <= 2^16.
  bool read(std::span<std::uint64_t> out);
  /// Whether the high stream ends in the byte of the last index that was read.
  bool at_end() const;

 private:
  std::span<const std::byte> low_;
  std::span<const std::byte> high_;
  unsigned bits_;
  std::uint64_t entry_ = 0;      ///< entries read
  std::uint64_t low_sum_ = 0;    ///< of their low bits
  std::uint64_t word_ = 0;       ///< ones of the high stream's current word that are not read yet
  std::uint64_t next_word_ = 0;  ///< bytes of the high stream before the word after that
  std::uint64_t end_bit_ = 0;    ///< behind the last one that was read
};

}  // namespace gradpress::kernels
