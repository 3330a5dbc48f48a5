// Random words as docs/wire_format.md defines them: a function of a key and an index, the same on
// every machine.
#pragma once

#include <cstdint>
#include <optional>

namespace gradpress::kernels {

struct RandomKey {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
};

constexpr std::uint64_t mix64(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

struct RandomOrigin {
  std::uint64_t seed = 0;
  std::uint64_t tensor = 0;
  std::uint64_t step = 0;
  std::uint64_t site = 0;
  std::uint64_t shard = 0;
  /// Whose data is rounded; none: workers that share their random numbers draw the same ones.
  std::optional<std::uint64_t> source = {};
};

constexpr RandomKey random_key(const RandomOrigin& from) {
  std::uint64_t key = mix64(from.seed);
  key = mix64(key ^ from.tensor);
  key = mix64(key ^ from.step);
  key = mix64(key ^ from.site);
  key = mix64(key ^ from.shard);
  if (from.source) key = mix64(key ^ *from.source);
  return {.low = static_cast<std::uint32_t>(key), .high = static_cast<std::uint32_t>(key >> 32)};
}

constexpr std::uint32_t random_word(RandomKey key, std::uint32_t index) {
  std::uint32_t x = index ^ key.low;
  x ^= x >> 16;
  x *= 0x21F0AAADU;
  x ^= x >> 15;
  x += key.high;
  x *= 0xD35A2D97U;
  return x ^ (x >> 15);
}

}  // namespace gradpress::kernels
