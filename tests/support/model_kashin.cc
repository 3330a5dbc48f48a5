// kashin: a transform per block, in double and straight from its definition.
#include <bit>
#include <cmath>

#include "support/model.h"

namespace gradpress::test {

namespace {

constexpr std::uint64_t kFrame = 1024;

struct Block {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
  std::uint64_t length = 0;  ///< coefficients
  std::size_t at = 0;        ///< of its bytes in the payload
};

std::vector<Block> blocks_of(const codec::Spec& spec, std::uint64_t n) {
  std::vector<Block> all;
  std::size_t at = 0;
  for (std::uint64_t begin = 0; begin < n; begin += kFrame) {
    const std::uint64_t count = std::min(kFrame, n - begin);
    const std::uint64_t length = std::max<std::uint64_t>(16, std::bit_ceil(count));
    all.push_back({.begin = begin, .count = count, .length = length, .at = at});
    at += 4 + length * spec.bits / 8;
  }
  return all;
}

/// Σ over i of (−1)^(number of bits that i and j share) · v(i), by halves.
void transform(std::vector<double>& v) {
  for (std::size_t h = 1; h < v.size(); h *= 2) {
    for (std::size_t i = 0; i < v.size(); ++i) {
      if ((i & h) != 0) continue;
      const double a = v[i];
      const double b = v[i + h];
      v[i] = a + b;
      v[i + h] = a - b;
    }
  }
}

double sign_of(const Words& words, std::uint64_t i) { return (words[i] & 1U) != 0 ? -1.0 : 1.0; }

unsigned code_of(const codec::Spec& spec, std::span<const std::byte> bytes, const Block& block,
                 std::uint64_t j) {
  unsigned code = 0;
  for (unsigned b = 0; b < spec.bits; ++b) {
    if (read_bit(bytes, block.at + 4, j * spec.bits + b)) code |= 1U << b;
  }
  return code;
}

double levels_of(const codec::Spec& spec) { return (1U << spec.bits) - 1; }

}  // namespace

std::vector<double> read_kashin(const codec::Spec& spec, std::span<const std::byte> bytes,
                                std::uint64_t n, const Words& words) {
  std::vector<double> out(n, 0.0);
  for (const Block& block : blocks_of(spec, n)) {
    const double peak = read_f32(bytes, block.at);
    std::vector<double> v(block.length);
    for (std::uint64_t j = 0; j < block.length; ++j) {
      v[j] = peak * (2.0 * code_of(spec, bytes, block, j) / levels_of(spec) - 1.0);
    }
    transform(v);
    for (std::uint64_t i = 0; i < block.count; ++i) {
      const std::uint64_t at = block.begin + i;
      out[at] = sign_of(words, at) * v[i] / static_cast<double>(block.length);
    }
  }
  return out;
}

std::vector<double> payload_rounding(const codec::Spec& spec, std::span<const std::byte> bytes,
                                     std::uint64_t n) {
  std::vector<double> out(n, 0.0);
  if (spec.kind != codec::Kind::kKashin) return out;
  for (const Block& block : blocks_of(spec, n)) {
    // Eleven roundings of numbers up to P times the largest coefficient, divided by P.
    const double peak = std::fabs(read_f32(bytes, block.at));
    for (std::uint64_t i = 0; i < block.count; ++i) out[block.begin + i] = 0x1p-20 * peak;
  }
  return out;
}

std::string judge_kashin(const codec::Spec& spec, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  std::size_t bytes = 0;
  for (const Block& block : blocks_of(spec, n)) {
    bytes = block.at + 4 + block.length * spec.bits / 8;
  }
  if (seen.payload.size() != bytes) {
    return "payload of " + std::to_string(seen.payload.size()) + " B, wanted " +
           std::to_string(bytes) + " B";
  }
  for (const Block& block : blocks_of(spec, n)) {
    std::vector<double> v(block.length, 0.0);
    double magnitudes = 0.0;
    double noise = 0.0;
    for (std::uint64_t i = 0; i < block.count; ++i) {
      const std::uint64_t at = block.begin + i;
      v[i] = sign_of(seen.words, at) * seen.x[at];
      magnitudes += std::fabs(seen.x[at]);
      noise += seen.noise[at];
    }
    transform(v);
    double peak = 0.0;
    for (const double c : v) peak = std::max(peak, std::fabs(c));
    const double grace = 1e-6 * magnitudes + noise;
    const double sent = read_f32(seen.payload, block.at);
    const bool vanished = sent == 0.0 && peak <= 0x1p-99 + grace;
    if (!vanished && !(std::fabs(sent - peak) <= grace)) {
      return "largest coefficient " + std::to_string(sent) + ", wanted " + std::to_string(peak);
    }
    const double levels = levels_of(spec);
    for (std::uint64_t j = 0; j < block.length; ++j) {
      const unsigned code = code_of(spec, seen.payload, block, j);
      if (vanished) {
        if (code != 0) return "a code in a block of zeros";
        continue;
      }
      const double place = (v[j] / sent + 1.0) * levels / 2.0 + seen.words.uniform(block.begin + j);
      const double slack = levels * grace / sent + 1e-5 * levels;
      if (code > std::floor(place + slack) || code + 1 < std::ceil(place - slack)) {
        // The largest level takes what rounding puts above it.
        if (code == levels && place >= levels - slack) continue;
        return "code " + std::to_string(code) + " of coefficient " +
               std::to_string(block.begin + j) + ", wanted the floor of " + std::to_string(place);
      }
    }
  }
  return {};
}

}  // namespace gradpress::test
