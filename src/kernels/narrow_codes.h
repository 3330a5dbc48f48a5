// Codes of 2 and 4 bits: eight at a time between a byte each and their place in a payload.
#pragma once

#include <cstdint>

namespace gradpress::kernels {

/// Packs 8 codes, one per byte, to kBits each, the first lowest.
template <unsigned kBits>
constexpr std::uint64_t squeeze(std::uint64_t codes) {
  if constexpr (kBits == 4) {
    codes &= 0x0F0F0F0F0F0F0F0FU;
    codes = (codes | (codes >> 4)) & 0x00FF00FF00FF00FFU;
    codes = (codes | (codes >> 8)) & 0x0000FFFF0000FFFFU;
    return (codes | (codes >> 16)) & 0xFFFFFFFFU;
  } else {
    static_assert(kBits == 2);
    codes &= 0x0303030303030303U;
    codes = (codes | (codes >> 6)) & 0x000F000F000F000FU;
    codes = (codes | (codes >> 12)) & 0x000000FF000000FFU;
    return (codes | (codes >> 24)) & 0xFFFFU;
  }
}

/// The inverse of squeeze; the bytes' upper bits are zero.
template <unsigned kBits>
constexpr std::uint64_t spread(std::uint64_t codes) {
  if constexpr (kBits == 4) {
    codes = (codes | (codes << 16)) & 0x0000FFFF0000FFFFU;
    codes = (codes | (codes << 8)) & 0x00FF00FF00FF00FFU;
    return (codes | (codes << 4)) & 0x0F0F0F0F0F0F0F0FU;
  } else {
    static_assert(kBits == 2);
    codes = (codes | (codes << 24)) & 0x000000FF000000FFU;
    codes = (codes | (codes << 12)) & 0x000F000F000F000FU;
    return (codes | (codes << 6)) & 0x0303030303030303U;
  }
}

}  // namespace gradpress::kernels
