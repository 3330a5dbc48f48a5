// RedSync's three ways to choose, by size of the tensor; the same for magnitudes and signed values.
#pragma once

#include <cstdint>
#include <optional>

#include "codec/candidates.h"
#include "spec/spec.h"

namespace gradpress::codec {

/// One choice out of candidates that a collect() with this k gave.
class RedSyncChoice {
 public:
  RedSyncChoice(const RedSyncTuning& tuning, Candidates& candidates,
                const kernels::ScanTotals& totals, std::uint64_t elements, std::uint64_t kept);

  /// Whether the tensor is large enough for the threshold search, the one method with a ratio.
  bool by_search() const { return elements_ > tuning_.trimmed_max; }

  /// Up to exact_max: the k largest. Up to trimmed_max: the same out of what a falling threshold
  /// lets through. Above: what a threshold found by bisection lets through, if that is more than
  /// band_low·k and less than band_high·k; where `probes` find none, the k largest. With `cut`, no
  /// more than the k largest.
  /// Returns the ratio that was found.
  std::optional<double> choose();
  /// Chooses by a ratio found before. False, with nothing changed, if it leaves the band now.
  bool choose_by(double ratio);

 private:
  /// Key bits of the least element above mean + ratio · (largest − mean).
  std::uint32_t cut_at(double ratio) const;
  bool in_band(std::size_t count) const;
  void trim();
  std::optional<double> search();
  void take_from(std::uint32_t cut);

  const RedSyncTuning& tuning_;
  Candidates& candidates_;
  double mean_;
  double largest_;
  std::uint64_t elements_;
  std::size_t kept_;
};

}  // namespace gradpress::codec
