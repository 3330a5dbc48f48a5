// Little-endian words in payloads, read and written at any alignment.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace gradpress::codec {

static_assert(
    std::endian::native == std::endian::little,
    "payloads are little-endian; a big-endian host needs swaps in wire.h and in the kernels");

/// Requires: at + sizeof(T) <= bytes.size().
template <class T>
T load_word(std::span<const std::byte> bytes, std::size_t at) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// Requires: at + sizeof(T) <= bytes.size().
template <class T>
void store_word(std::span<std::byte> bytes, std::size_t at, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace gradpress::codec
