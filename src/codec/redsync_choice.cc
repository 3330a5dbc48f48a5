#include "codec/redsync_choice.h"

#include <bit>

namespace gradpress::codec {

RedSyncChoice::RedSyncChoice(const RedSyncTuning& tuning, Candidates& candidates,
                             const kernels::ScanTotals& totals, std::uint64_t elements,
                             std::uint64_t kept)
    : tuning_(tuning),
      candidates_(candidates),
      mean_(elements == 0 ? 0.0 : totals.sum / static_cast<double>(elements)),
      largest_(static_cast<double>(totals.largest)),
      elements_(elements),
      kept_(static_cast<std::size_t>(kept)) {}

std::uint32_t RedSyncChoice::cut_at(double ratio) const {
  const auto threshold = static_cast<float>(mean_ + ratio * (largest_ - mean_));
  // Strictly above, in whole steps of the key; nothing of the other sign is ever a candidate.
  return threshold < 0.0F ? 0 : std::bit_cast<std::uint32_t>(threshold + 0.0F) + 1;
}

bool RedSyncChoice::in_band(std::size_t count) const {
  const auto entries = static_cast<double>(count);
  const auto k = static_cast<double>(kept_);
  return entries > tuning_.band_low * k && entries < tuning_.band_high * k;
}

void RedSyncChoice::take_from(std::uint32_t cut) {
  candidates_.keep_from(cut);
  if (tuning_.cut != 0) candidates_.keep_largest(kept_);
}

void RedSyncChoice::trim() {
  for (double ratio = tuning_.trim_start; ratio > 0.0; ratio -= tuning_.trim_step) {
    const std::uint32_t cut = cut_at(ratio);
    if (cut < candidates_.complete_from()) break;
    if (candidates_.count_from(cut) >= kept_) {
      candidates_.keep_from(cut);
      break;
    }
  }
  // All magnitudes may be equal, and then none is above any threshold: the candidates have k.
  candidates_.keep_largest(kept_);
}

std::optional<double> RedSyncChoice::search() {
  double low = 0.0;
  double high = 1.0;
  for (unsigned probe = 0; probe < tuning_.probes; ++probe) {
    const double ratio = (low + high) / 2.0;
    const std::uint32_t cut = cut_at(ratio);
    // More are above this than there are candidates, and those are enough: too many.
    const bool uncounted = cut < candidates_.complete_from();
    const std::size_t count = uncounted ? candidates_.size() : candidates_.count_from(cut);
    if (!uncounted && in_band(count)) {
      take_from(cut);
      return ratio;
    }
    (uncounted || count >= kept_ ? low : high) = ratio;
  }
  candidates_.keep_largest(kept_);
  return std::nullopt;
}

bool RedSyncChoice::choose_by(double ratio) {
  const std::uint32_t cut = cut_at(ratio);
  if (cut < candidates_.complete_from() || !in_band(candidates_.count_from(cut))) return false;
  take_from(cut);
  return true;
}

std::optional<double> RedSyncChoice::choose() {
  if (by_search()) return search();
  if (elements_ > tuning_.exact_max) {
    trim();
  } else {
    candidates_.keep_largest(kept_);
  }
  return std::nullopt;
}

}  // namespace gradpress::codec
