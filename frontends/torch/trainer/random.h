// Random numbers that depend on (seed, purpose, count) alone: no worker draws from a generator that
// others share, and a run that goes on from a checkpoint draws what it would have drawn.
#pragma once

#include <cstdint>

namespace gradpress::trainer {

/// SplitMix64: one multiplication chain per number, good enough to shuffle.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t purpose)
      : state_(mix(seed * 0x9e3779b97f4a7c15ULL + 1) ^ mix(purpose + 0x632be59bd9b4e019ULL)) {}

  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15ULL); }
  /// Below `limit`. The bias, at most limit / 2^64, is of no consequence here.
  /// Requires: limit > 0.
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }
  /// In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }

  std::uint64_t state_;
};

}  // namespace gradpress::trainer
