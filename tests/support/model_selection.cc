// Codecs that send some elements: topk and randomk, whose choice is determined, and dgc, redsync
// and redsync-q, whose choice must only be a best one within a band of sizes.
#include <algorithm>
#include <cmath>
#include <limits>

#include "support/model.h"

namespace gradpress::test {

namespace {

using codec::Kind;

struct Band {
  std::uint64_t least;
  std::uint64_t most;
};

/// How many entries the method may send of `candidates` that are worth sending.
Band band(const codec::Spec& spec, std::uint64_t n, std::uint64_t candidates,
          std::uint64_t encodes) {
  const std::uint64_t k = codec::kept_elements(spec, n);
  if (spec.kind == Kind::kTopK) return {k, k};
  const std::uint64_t full = std::min(k, candidates);
  if (spec.kind == Kind::kDgc) return {std::min<std::uint64_t>(full, 1), k};
  if (n <= spec.redsync.trimmed_max || n <= spec.redsync.exact_max) return {full, k};
  // A reused ratio meets other data than it was found for.
  if (spec.kind == Kind::kRedSync && encodes % spec.redsync.reuse != 0) return {0, k};
  const auto low = static_cast<std::uint64_t>(std::floor(spec.redsync.band_low * double(k)));
  return {std::min(full, low), k};
}

std::string wrong_indices(const std::vector<std::uint32_t>& indices, std::uint64_t n) {
  for (std::size_t j = 0; j < indices.size(); ++j) {
    if (indices[j] >= n) return "index " + std::to_string(indices[j]) + " is out of range";
    if (j > 0 && indices[j] <= indices[j - 1]) {
      return "index " + std::to_string(indices[j]) + " does not ascend";
    }
  }
  return {};
}

/// Whether the elements at `indices` come before all others by (larger merit, then, where
/// `ties_by_index`, smaller index), as far as the noise lets one say.
std::string wrong_choice(std::span<const double> merit, std::span<const double> noise,
                         const std::vector<std::uint32_t>& indices, bool ties_by_index) {
  std::vector<bool> chosen(merit.size(), false);
  for (const std::uint32_t i : indices) chosen[i] = true;
  double best_left = -std::numeric_limits<double>::infinity();
  std::size_t left = 0;
  for (std::size_t i = 0; i < merit.size(); ++i) {
    if (!chosen[i] && merit[i] - noise[i] > best_left) {
      best_left = merit[i] - noise[i];
      left = i;
    }
  }
  for (const std::uint32_t i : indices) {
    const bool tie = merit[i] == best_left && noise[i] == 0.0 && noise[left] == 0.0;
    if (merit[i] + noise[i] < best_left || (tie && ties_by_index && i > left)) {
      return "sent element " + std::to_string(i) + " (" + std::to_string(merit[i]) +
             ") before element " + std::to_string(left) + " (" + std::to_string(best_left) + ")";
    }
  }
  return {};
}

std::string wrong_count(std::uint64_t count, const Band& allowed) {
  if (count >= allowed.least && count <= allowed.most) return {};
  return "sent " + std::to_string(count) + " entries, the method sends " +
         std::to_string(allowed.least) + " to " + std::to_string(allowed.most);
}

}  // namespace

std::string judge_selection(const codec::Spec& spec, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  if (seen.payload.size() % 8 != 0) return "a length that is no multiple of 8";
  const auto indices = read_indices(spec, seen.payload);
  if (auto wrong = wrong_indices(indices, n); !wrong.empty()) return wrong;
  std::vector<double> magnitude(n);
  std::uint64_t worth_sending = 0;
  for (std::size_t i = 0; i < n; ++i) {
    magnitude[i] = std::fabs(seen.x[i]);
    worth_sending += magnitude[i] > seen.noise[i] ? 1 : 0;
  }
  const auto count = wrong_count(indices.size(), band(spec, n, worth_sending, seen.encodes));
  if (!count.empty()) return count;
  const auto sent = read_payload(spec, seen.payload, n, seen.words);
  for (const std::uint32_t i : indices) {
    if (!(std::fabs(sent[i] - seen.x[i]) <= seen.noise[i])) {
      return "element " + std::to_string(i) + " is " + std::to_string(seen.x[i]) + ", sent " +
             std::to_string(sent[i]);
    }
  }
  return wrong_choice(magnitude, seen.noise, indices, spec.kind == Kind::kTopK);
}

std::string judge_randomk(const codec::Spec& spec, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  const std::uint64_t k = codec::kept_elements(spec, n);
  if (seen.payload.size() != 4 * k) return "a length that is not 4 k";
  for (std::uint64_t j = 0; j < k; ++j) {
    const std::uint64_t i = stratum_index(seen.words, j, k, n);
    const double sent = read_f32(seen.payload, 4 * j);
    if (!(std::fabs(sent - seen.x[i]) <= seen.noise[i])) {
      return "stratum " + std::to_string(j) + " takes element " + std::to_string(i) + ", " +
             std::to_string(seen.x[i]) + ", sent " + std::to_string(sent);
    }
  }
  return {};
}

std::string judge_redsync_q(const codec::Spec& spec, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  if (seen.payload.size() < 4 || seen.payload.size() % 4 != 0) return "a length that is not 4c + 4";
  const auto indices = read_indices(spec, seen.payload);
  if (auto wrong = wrong_indices(indices, n); !wrong.empty()) return wrong;
  double sum = 0.0;
  double grace = 1e-37;
  for (const std::uint32_t i : indices) {
    sum += seen.x[i];
    grace += 1e-5 * std::fabs(seen.x[i]) + seen.noise[i];
  }
  const double value = read_f32(seen.payload, 0);
  if (!(std::fabs(value * double(indices.size()) - sum) <= grace)) {
    return "the shared value is " + std::to_string(value) + ", the mean " +
           std::to_string(sum / double(indices.size()));
  }
  // One direction a step: the largest signed values, then the smallest. Which of the two comes
  // first is the codec's choice, so either must be right, and the two must alternate (that is
  // tested where several steps are in view).
  std::string wrong;
  for (const double direction : {1.0, -1.0}) {
    std::vector<double> merit(n);
    std::uint64_t worth_sending = 0;
    for (std::size_t i = 0; i < n; ++i) {
      merit[i] = direction * seen.x[i];
      worth_sending += merit[i] > seen.noise[i] ? 1 : 0;
    }
    wrong = wrong_count(indices.size(), band(spec, n, worth_sending, seen.encodes));
    if (wrong.empty()) wrong = wrong_choice(merit, seen.noise, indices, false);
    if (wrong.empty()) return {};
  }
  return wrong;
}

}  // namespace gradpress::test
