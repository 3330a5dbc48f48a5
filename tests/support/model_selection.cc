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
Band band(const codec::Spec& spec, std::uint64_t n, std::uint64_t candidates) {
  const std::uint64_t k = codec::kept_elements(spec, n);
  if (spec.kind == Kind::kTopK || spec.kind == Kind::kChunkTopK) return {k, k};
  const std::uint64_t full = std::min(k, candidates);
  if (spec.kind == Kind::kDgc) return {std::min<std::uint64_t>(full, 1), k};
  if (n <= spec.redsync.trimmed_max || n <= spec.redsync.exact_max) return {full, k};
  // More than low·k and less than high·k; k itself where the search finds nothing.
  const auto low = static_cast<std::uint64_t>(std::floor(spec.redsync.band_low * double(k))) + 1;
  const auto high = static_cast<std::uint64_t>(std::ceil(spec.redsync.band_high * double(k))) - 1;
  const std::uint64_t most = spec.redsync.cut != 0 ? k : std::clamp(high, k, n);
  return {std::min(full, low), most};
}

std::string wrong_indices(const std::vector<Entry>& entries, std::uint64_t n) {
  for (std::size_t j = 0; j < entries.size(); ++j) {
    const std::string name = "index " + std::to_string(entries[j].index);
    if (entries[j].index >= n) return name + " is out of range";
    if (j > 0 && entries[j].index <= entries[j - 1].index) return name + " does not ascend";
  }
  return {};
}

/// How far a value rounded to this form may be from what it stands for.
double rounding(codec::ValueCode code, double x) {
  if (code == codec::ValueCode::kFp16) {
    return std::max({0x1p-11 * std::fabs(x), 0x1p-25, std::fabs(x) - 65504.0});
  }
  return code == codec::ValueCode::kBf16 ? 0x1p-8 * std::fabs(x) : 0.0;
}

/// Values of 2 bits: each code is that of its element, and the table has the means of the bins.
std::string wrong_bins(const Sighting& seen, const std::vector<Entry>& entries) {
  double sum = 0.0;
  double grace = 0.0;
  for (const Entry& entry : entries) {
    sum += std::fabs(seen.x[entry.index]);
    grace += seen.noise[entry.index];
  }
  const auto count = static_cast<double>(entries.size());
  const double mean = sum / count;
  grace = grace / count + 1e-6 * mean;
  double sums[4] = {};
  double graces[4] = {};
  double values[4] = {};
  double counts[4] = {};
  for (const Entry& entry : entries) {
    const double x = seen.x[entry.index];
    const double noise = seen.noise[entry.index];
    const bool sign_is_sure = std::fabs(x) > noise;
    const bool size_is_sure = std::fabs(std::fabs(x) - mean) > noise + grace;
    if ((sign_is_sure && (entry.code >> 1) != (x < 0.0 ? 1U : 0U)) ||
        (size_is_sure && (entry.code & 1U) != (std::fabs(x) > mean ? 1U : 0U))) {
      return "element " + std::to_string(entry.index) + " is " + std::to_string(x) +
             " where the mean magnitude is " + std::to_string(mean) + ", sent as code " +
             std::to_string(entry.code);
    }
    sums[entry.code] += x;
    graces[entry.code] += noise + 1e-6 * std::fabs(x);
    counts[entry.code] += 1.0;
    values[entry.code] = entry.value;
  }
  for (std::size_t code = 0; code < 4; ++code) {
    if (std::fabs(values[code] * counts[code] - sums[code]) <= graces[code] + 1e-37) continue;
    return "code " + std::to_string(code) + " stands for " + std::to_string(values[code]) +
           ", the mean is " + std::to_string(sums[code] / counts[code]);
  }
  return {};
}

/// Entries with values of their own. Requires: indices in range.
std::string wrong_values(const codec::Spec& spec, const Sighting& seen,
                         const std::vector<Entry>& entries) {
  if (spec.value == codec::ValueCode::kTwoBits) return wrong_bins(seen, entries);
  for (const Entry& entry : entries) {
    const double x = seen.x[entry.index];
    if (!(std::fabs(entry.value - x) <= seen.noise[entry.index] + rounding(spec.value, x))) {
      return "element " + std::to_string(entry.index) + " is " + std::to_string(x) + ", sent " +
             std::to_string(entry.value);
    }
  }
  return {};
}

/// Whether the elements at `indices` come before all others by (larger merit, then, where
/// `ties_by_index`, smaller index), as far as the noise lets one say.
std::string wrong_choice(std::span<const double> merit, std::span<const double> noise,
                         const std::vector<Entry>& entries, bool ties_by_index) {
  std::vector<bool> chosen(merit.size(), false);
  for (const Entry& entry : entries) chosen[entry.index] = true;
  double best_left = -std::numeric_limits<double>::infinity();
  std::size_t left = 0;
  for (std::size_t i = 0; i < merit.size(); ++i) {
    if (!chosen[i] && merit[i] - noise[i] > best_left) {
      best_left = merit[i] - noise[i];
      left = i;
    }
  }
  for (const Entry& entry : entries) {
    const std::uint64_t i = entry.index;
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

/// The same chunk by chunk.
std::string wrong_chunks(const codec::Spec& spec, std::span<const double> merit,
                         std::span<const double> noise, const std::vector<Entry>& entries) {
  for (std::size_t begin = 0; begin < merit.size(); begin += spec.chunk) {
    const std::size_t size = std::min<std::size_t>(spec.chunk, merit.size() - begin);
    std::vector<Entry> own;
    for (const Entry& entry : entries) {
      if (entry.index >= begin && entry.index < begin + size) {
        own.push_back({.index = entry.index - begin});
      }
    }
    const std::size_t kept = (size * spec.chunk_kept + spec.chunk - 1) / spec.chunk;
    const std::string where = "chunk at " + std::to_string(begin) + ": ";
    if (own.size() != kept) {
      return where + std::to_string(own.size()) + " entries, wanted " + std::to_string(kept);
    }
    const auto wrong =
        wrong_choice(merit.subspan(begin, size), noise.subspan(begin, size), own, true);
    if (!wrong.empty()) return where + wrong;
  }
  return {};
}

}  // namespace

std::string judge_selection(const codec::Spec& spec, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  const auto entries = read_entries(spec, seen.payload, n);
  if (entries.empty() && !seen.payload.empty()) return "a length that its entries do not have";
  if (auto wrong = wrong_indices(entries, n); !wrong.empty()) return wrong;
  std::vector<double> magnitude(n);
  std::uint64_t worth_sending = 0;
  for (std::size_t i = 0; i < n; ++i) {
    magnitude[i] = std::fabs(seen.x[i]);
    worth_sending += magnitude[i] > seen.noise[i] ? 1 : 0;
  }
  const auto count = wrong_count(entries.size(), band(spec, n, worth_sending));
  if (!count.empty()) return count;
  if (auto wrong = wrong_values(spec, seen, entries); !wrong.empty()) return wrong;
  if (spec.kind == Kind::kChunkTopK) return wrong_chunks(spec, magnitude, seen.noise, entries);
  return wrong_choice(magnitude, seen.noise, entries, spec.kind == Kind::kTopK);
}

std::string judge_randomk(const codec::Spec& spec, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  const std::uint64_t k = codec::kept_elements(spec, n);
  const std::uint64_t bytes = spec.value == codec::ValueCode::kTwoBits
                                  ? (k == 0 ? 0 : 16 + (k + 3) / 4)
                              : spec.value == codec::ValueCode::kFp32 ? 4 * k
                                                                      : 2 * k;
  if (seen.payload.size() != bytes) return "a length that is not that of k values";
  auto entries = read_values(spec.value, seen.payload, 0, k);
  for (std::uint64_t j = 0; j < k; ++j) entries[j].index = stratum_index(seen.words, j, k, n);
  return entries.empty() ? std::string() : wrong_values(spec, seen, entries);
}

std::string judge_redsync_q(const codec::Spec& spec, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  if (seen.payload.size() < 4 || seen.payload.size() % 4 != 0) return "a length that is not 4c + 4";
  const auto entries = read_entries(spec, seen.payload, n);
  if (auto wrong = wrong_indices(entries, n); !wrong.empty()) return wrong;
  double sum = 0.0;
  double grace = 1e-37;
  for (const Entry& entry : entries) {
    sum += seen.x[entry.index];
    grace += 1e-5 * std::fabs(seen.x[entry.index]) + seen.noise[entry.index];
  }
  const double value = read_f32(seen.payload, 0);
  if (!(std::fabs(value * double(entries.size()) - sum) <= grace)) {
    return "the shared value is " + std::to_string(value) + ", the mean " +
           std::to_string(sum / double(entries.size()));
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
    wrong = wrong_count(entries.size(), band(spec, n, worth_sending));
    if (wrong.empty()) wrong = wrong_choice(merit, seen.noise, entries, false);
    if (wrong.empty()) return {};
  }
  return wrong;
}

}  // namespace gradpress::test
