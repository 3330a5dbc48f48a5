// What an encode pass of a dense codec reads, and what it keeps for the next step.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

namespace gradpress::kernels {

/// Numbers that a pass reads, changes and writes: the old ones stay where they were, unless both
/// places are the same memory. Requires: equal sizes; one and the same memory, or no overlap.
struct Renewal {
  std::span<const float> from = {};
  std::span<float> to = {};
  /// Writes go past the caches where they can, because nobody reads them soon: memory that a pass
  /// writes whole need not be read first. Ends with flush_stores() (vector.h).
  bool past_caches = false;

  Renewal() = default;
  Renewal(std::span<const float> old, std::span<float> renewed, bool past = false)
      : from(old), to(renewed), past_caches(past) {}
  /// In place.
  Renewal(std::span<float> both) : from(both), to(both) {}
  template <class Floats>
  requires std::convertible_to<Floats&, std::span<float>> Renewal(Floats& both)
      : Renewal(std::span<float>(both)) {}

  bool empty() const { return to.empty(); }
  Renewal subspan(std::size_t begin, std::size_t count) const {
    return {from.subspan(begin, count), to.subspan(begin, count), past_caches};
  }
};

/// The same as pointers, inside kernels; both null without feedback.
struct RenewedAt {
  const float* from = nullptr;
  float* to = nullptr;
  bool past_caches = false;

  RenewedAt operator+(std::size_t elements) const {
    return {.from = from + elements, .to = to + elements, .past_caches = past_caches};
  }
};
inline RenewedAt pointers(const Renewal& renewal) {
  return {.from = renewal.from.data(), .to = renewal.to.data(), .past_caches = renewal.past_caches};
}

/// x = g + residual enters the payload, and the pass leaves x − (what the payload carries) in
/// `residual`. An empty residual says: no feedback, x = g. Elements of g that are NaN or of
/// magnitude `limit` and above count as zero, which leaves their residual in x, and are reported.
/// Requires: as many in the residual as in g, or an empty residual.
struct FeedbackPass {
  std::span<const float> g;
  Renewal residual;
  float limit;

  bool has_feedback() const { return !residual.empty(); }
  RenewedAt kept(std::size_t begin = 0) const {
    return has_feedback() ? pointers(residual) + begin : RenewedAt{};
  }
};

}  // namespace gradpress::kernels
