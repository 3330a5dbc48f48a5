#include "support/close_call.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace gradpress::test {

namespace {

constexpr double kNoDecision = std::numeric_limits<double>::infinity();

double largest(std::span<const float> x) {
  double most = 0.0;
  for (const float value : x) most = std::max(most, std::fabs(static_cast<double>(value)));
  return most;
}

/// The last element taken and the first left out differ by this much.
double selection_call(const codec::Spec& spec, std::span<const float> x) {
  std::vector<double> magnitudes;
  for (const float value : x) magnitudes.push_back(std::fabs(static_cast<double>(value)));
  std::ranges::sort(magnitudes, std::greater<>());
  const auto kept = static_cast<std::size_t>(codec::kept_elements(spec, x.size()));
  if (kept == x.size() || magnitudes[kept - 1] == 0.0) return kNoDecision;
  return (magnitudes[kept - 1] - magnitudes[kept]) / magnitudes[0];
}

/// RedSync's bisection asks how many magnitudes lie above mean + ratio · (largest − mean). It stops
/// at a number it likes, unless it has not kept enough candidates to count them; this goes on to
/// the last question it could ask.
double search_call(const codec::Spec& spec, std::span<const float> x) {
  if (spec.redsync.reuse > 1) return 0.0;
  const double most = largest(x);
  if (x.size() == 1 || most == 0.0) return kNoDecision;
  double mean = 0.0;
  for (const float value : x) mean += std::fabs(static_cast<double>(value)) / double(x.size());
  const auto kept = static_cast<std::size_t>(codec::kept_elements(spec, x.size()));
  double least = selection_call(spec, x);
  double low = 0.0;
  double high = 1.0;
  for (unsigned probe = 0; probe < spec.redsync.probes; ++probe) {
    const double ratio = (low + high) / 2.0;
    const double threshold = mean + ratio * (most - mean);
    std::size_t above = 0;
    for (const float value : x) {
      const double magnitude = std::fabs(static_cast<double>(value));
      above += magnitude > threshold ? 1 : 0;
      least = std::min(least, std::fabs(magnitude - threshold) / most);
    }
    const bool too_few = double(above) <= spec.redsync.band_low * double(kept);
    (too_few ? high : low) = ratio;
  }
  return least;
}

double sign_call(std::span<const float> x) {
  double least = kNoDecision;
  for (const float value : x) least = std::min(least, std::fabs(static_cast<double>(value)));
  const double most = largest(x);
  return most == 0.0 ? kNoDecision : least / most;
}

/// Votes are whole numbers: a tie is one in every order of summation.
double vote_call(std::span<const float> x) {
  std::vector<float> decided(x.begin(), x.end());
  std::erase(decided, 0.0F);
  return sign_call(decided);
}

/// code = ⌊|x| · s / norm + u⌋: how far that is from the next whole number. An element at most as
/// large as the norm moves its code by at most s times its own relative change.
double rounding_call(const codec::Spec& spec, std::span<const float> x, const Words& words) {
  if (x.size() > spec.block) return 0.0;
  double squares = 0.0;
  for (const float value : x) squares += static_cast<double>(value) * value;
  if (squares == 0.0) return kNoDecision;
  const double levels = (1U << (spec.bits - 1)) - 1;
  double least = kNoDecision;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double code = std::fabs(x[i]) * levels / std::sqrt(squares) + words.uniform(i);
    // Zero is exact on every way: its code is 0, whatever the random number.
    if (x[i] != 0.0F) least = std::min(least, std::fabs(code - std::round(code)) / levels);
  }
  return least;
}

}  // namespace

double closest_call(const codec::Spec& spec, std::span<const float> x, const Words& words) {
  if (x.empty()) return kNoDecision;
  switch (spec.kind) {
    case codec::Kind::kTopK:
      return selection_call(spec, x);
    case codec::Kind::kRedSync:
      return x.size() > spec.redsync.trimmed_max ? search_call(spec, x) : selection_call(spec, x);
    case codec::Kind::kSign:
      return vote_call(x);
    case codec::Kind::kEfSign:
      return sign_call(x);
    case codec::Kind::kQsgd:
      return rounding_call(spec, x, words);
    case codec::Kind::kNone:
    case codec::Kind::kFp16:
    case codec::Kind::kBf16:
    case codec::Kind::kRandomK:
    case codec::Kind::kPowerSgd:
    case codec::Kind::kAcpSgd:
      return kNoDecision;
    default:
      return 0.0;
  }
}

}  // namespace gradpress::test
