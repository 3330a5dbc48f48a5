// sign, efsign and onebit: a bit an element, and means.
#include <cmath>

#include "support/model.h"

namespace gradpress::test {

namespace {

using codec::Kind;

std::string wrong_level(const char* which, double wanted, double got) {
  return std::string(which) + " is " + std::to_string(got) + ", wanted " + std::to_string(wanted);
}

}  // namespace

std::string judge_signs(const codec::Spec& spec, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  const bool votes = spec.kind == Kind::kSign || spec.kind == Kind::kSignum;
  const std::size_t header = votes ? 0 : spec.kind == Kind::kEfSign ? 4 : 8;
  if (seen.payload.size() != header + (n + 31) / 32 * 4) {
    return "payload of " + std::to_string(seen.payload.size()) + " B for " + std::to_string(n) +
           " elements";
  }
  double positive = 0.0;
  double negative = 0.0;
  double magnitude = 0.0;
  double noise = 0.0;
  std::uint64_t negatives = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const bool bit = read_bit(seen.payload, header, i);
    const double x = seen.x[i];
    const bool undecided = seen.noise[i] > 0.0 && std::fabs(x) <= seen.noise[i];
    if (votes && x == 0.0 && seen.noise[i] == 0.0) {
      if (bit != ((seen.votes[seen.begin + i] & 1U) != 0)) {
        return "bit " + std::to_string(i) + " is " + (bit ? "1" : "0") + " for a zero";
      }
    } else if (!undecided && bit != std::signbit(x) && (x != 0.0 || seen.noise[i] == 0.0)) {
      return "bit " + std::to_string(i) + " is " + (bit ? "1" : "0") + " for " + std::to_string(x);
    }
    (bit ? negative : positive) += x;
    negatives += bit ? 1 : 0;
    magnitude += std::fabs(x);
    noise += seen.noise[i];
  }
  for (std::uint64_t i = n; i < (n + 31) / 32 * 32; ++i) {
    if (read_bit(seen.payload, header, i)) return "bit " + std::to_string(i) + " past the end is 1";
  }
  if (n == 0 || header == 0) return {};
  const double grace = 1e-5 * magnitude + noise + 1e-37;
  if (spec.kind == Kind::kEfSign) {
    const double sent = read_f32(seen.payload, 0);
    if (!(std::fabs(sent * double(n) - magnitude) <= grace)) {
      return wrong_level("the mean magnitude", magnitude / double(n), sent);
    }
    return {};
  }
  const auto check = [&](const char* which, double sum, std::uint64_t count, double sent) {
    if (count == 0) return sent == 0.0 ? std::string() : wrong_level(which, 0.0, sent);
    if (std::fabs(sent * double(count) - sum) <= grace) return std::string();
    return wrong_level(which, sum / double(count), sent);
  };
  const auto wrong =
      check("the mean of sign bit 0", positive, n - negatives, read_f32(seen.payload, 0));
  return wrong.empty()
             ? check("the mean of sign bit 1", negative, negatives, read_f32(seen.payload, 4))
             : wrong;
}

}  // namespace gradpress::test
