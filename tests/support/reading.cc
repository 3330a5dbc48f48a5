#include "support/reading.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace gradpress::test {

namespace {

using codec::Kind;

/// To `digits` binary digits, or to a multiple of 2^least below the normal range; ties to even.
double rounded(double value, int digits, int least) {
  if (value == 0.0) return value;
  const int exponent = std::max(std::ilogb(value) - (digits - 1), least);
  return std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
}

std::uint64_t mix(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

std::uint16_t read_u16(std::span<const std::byte> bytes, std::size_t at) {
  return static_cast<std::uint16_t>(std::to_integer<unsigned>(bytes[at]) |
                                    std::to_integer<unsigned>(bytes[at + 1]) << 8);
}

std::uint64_t blocks(const codec::Spec& spec, std::uint64_t n) {
  return (n + spec.block - 1) / spec.block;
}

double ternary(std::span<const std::byte> bytes, std::uint64_t n, std::uint64_t i) {
  const std::uint64_t group = i / 8;
  const std::uint64_t members = std::min<std::uint64_t>(8, n - 8 * group);
  const std::size_t at = 4 + 2 * group;
  const bool nibbles = members <= 4;
  const bool kept = read_bit(bytes, at, i % 8);
  const bool negative = nibbles ? read_bit(bytes, at, i % 8 + 4) : read_bit(bytes, at + 1, i % 8);
  if (!kept) return 0.0;
  return negative ? -read_f32(bytes, 0) : read_f32(bytes, 0);
}

double natural(std::byte byte) {
  const int code = std::to_integer<int>(byte) & 127;
  if (code == 0) return 0.0;
  const double magnitude = std::ldexp(1.0, code - 110);
  return std::to_integer<int>(byte) >= 128 ? -magnitude : magnitude;
}

}  // namespace

std::uint16_t half_bits(double value) {
  const double v = std::clamp(rounded(value, 11, -24), -65504.0, 65504.0);
  const double a = std::fabs(v);
  const unsigned sign = std::signbit(value) ? 0x8000U : 0U;
  if (a < std::ldexp(1.0, -14)) return static_cast<std::uint16_t>(sign | unsigned(a * 0x1p24));
  const int e = std::ilogb(a);
  const auto fraction = static_cast<unsigned>(std::ldexp(a, 10 - e)) - 1024U;
  return static_cast<std::uint16_t>(sign | unsigned(e + 15) << 10 | fraction);
}

double half_value(std::uint16_t bits) {
  const int e = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double a = e == 31  ? (fraction == 0 ? INFINITY : NAN)
                   : e == 0 ? std::ldexp(fraction, -24)
                            : std::ldexp(1024 + fraction, e - 25);
  return (bits & 0x8000) != 0 ? -a : a;
}

std::uint16_t bfloat_bits(double value) {
  const auto v = static_cast<float>(rounded(value, 8, -133));
  std::uint32_t bits = 0;
  std::memcpy(&bits, &v, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

double bfloat_value(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0.0F;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

Words::Words(const Origin& origin) : key_(mix(origin.seed)) {
  for (const std::uint64_t part : {origin.tensor, origin.step, origin.site, origin.shard}) {
    key_ = mix(key_ ^ part);
  }
  if (origin.source) key_ = mix(key_ ^ *origin.source);
}

std::uint32_t Words::operator[](std::uint64_t index) const {
  std::uint32_t x = static_cast<std::uint32_t>(index) ^ static_cast<std::uint32_t>(key_);
  x ^= x >> 16;
  x *= 0x21F0AAADU;
  x ^= x >> 15;
  x += static_cast<std::uint32_t>(key_ >> 32);
  x *= 0xD35A2D97U;
  return x ^ (x >> 15);
}

double Words::uniform(std::uint64_t index) const { return ((*this)[index] >> 8) * 0x1p-24; }

std::uint32_t read_u32(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    word |= std::to_integer<std::uint32_t>(bytes[at + i]) << (8 * i);
  }
  return word;
}

double read_f32(std::span<const std::byte> bytes, std::size_t at) {
  const std::uint32_t word = read_u32(bytes, at);
  float value = 0.0F;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

bool read_bit(std::span<const std::byte> bytes, std::size_t first_byte, std::uint64_t bit) {
  return (std::to_integer<unsigned>(bytes[first_byte + bit / 8]) >> (bit % 8) & 1U) != 0;
}

std::uint64_t stratum_index(const Words& words, std::uint64_t j, std::uint64_t k, std::uint64_t n) {
  const std::uint64_t begin = j * n / k;
  const std::uint64_t width = (j + 1) * n / k - begin;
  return begin + (std::uint64_t{words[j]} * width >> 32);
}

std::vector<Entry> read_values(codec::ValueCode code, std::span<const std::byte> bytes,
                               std::size_t first, std::size_t count) {
  using codec::ValueCode;
  std::vector<Entry> entries(count);
  for (std::size_t j = 0; j < count; ++j) {
    Entry& entry = entries[j];
    if (code == ValueCode::kFp32) entry.value = read_f32(bytes, first + 4 * j);
    if (code == ValueCode::kFp16) entry.value = half_value(read_u16(bytes, first + 2 * j));
    if (code == ValueCode::kBf16) entry.value = bfloat_value(read_u16(bytes, first + 2 * j));
    if (code != ValueCode::kTwoBits) continue;
    entry.code = (read_bit(bytes, first + 16, 2 * j) ? 1U : 0U) +
                 (read_bit(bytes, first + 16, 2 * j + 1) ? 2U : 0U);
    entry.value = read_f32(bytes, first + 4 * entry.code);
  }
  return entries;
}

std::vector<Entry> read_entries(const codec::Spec& spec, std::span<const std::byte> bytes,
                                std::uint64_t n) {
  if (spec.kind == Kind::kRedSyncQ) {
    std::vector<Entry> entries((bytes.size() - 4) / 4);
    for (std::size_t j = 0; j < entries.size(); ++j) {
      entries[j] = {.index = read_u32(bytes, 4 + 4 * j), .value = read_f32(bytes, 0)};
    }
    return entries;
  }
  if (!codec::has_coded_entries(spec)) {
    const std::size_t count = bytes.size() / 8;
    if (bytes.size() != 8 * count) return {};
    std::vector<Entry> entries = read_values(spec.value, bytes, 4 * count, count);
    for (std::size_t j = 0; j < count; ++j) entries[j].index = read_u32(bytes, 4 * j);
    return entries;
  }
  if (bytes.empty()) return {};
  const std::size_t count = read_u32(bytes, 0);
  const std::size_t value_bytes = spec.value == codec::ValueCode::kTwoBits ? 16 + (count + 3) / 4
                                  : spec.value == codec::ValueCode::kFp32  ? 4 * count
                                                                           : 2 * count;
  std::vector<Entry> entries = read_values(spec.value, bytes, 4, count);
  const std::size_t first = 4 + value_bytes;
  if (spec.index == codec::IndexCode::kPlain) {
    if (bytes.size() != first + 4 * count) return {};
    for (std::size_t j = 0; j < count; ++j) entries[j].index = read_u32(bytes, first + 4 * j);
    return entries;
  }
  unsigned bits = 0;
  while ((10000 * codec::kept_elements(spec, n) << bits) < 4812 * n) ++bits;
  const std::size_t high = first + (count * bits + 7) / 8;
  std::uint64_t at = 0;
  std::uint64_t next = 0;
  for (std::size_t j = 0; j < count; ++j) {
    std::uint64_t gap = 0;
    for (unsigned b = 0; b < bits; ++b) {
      if (read_bit(bytes, first, j * bits + b)) gap |= std::uint64_t{1} << b;
    }
    while (high + at / 8 < bytes.size() && !read_bit(bytes, high, at)) {
      gap += std::uint64_t{1} << bits;
      ++at;
    }
    ++at;
    entries[j].index = next + gap;
    next = entries[j].index + 1;
  }
  return bytes.size() == high + (at + 7) / 8 ? entries : std::vector<Entry>();
}

int read_code(const codec::Spec& spec, std::span<const std::byte> bytes, std::uint64_t n,
              std::uint64_t i) {
  const unsigned bits = spec.kind == Kind::kInt8 ? 8 : spec.bits;
  int code = 0;
  for (unsigned b = 0; b < bits; ++b) {
    if (read_bit(bytes, 4 * blocks(spec, n), i * bits + b)) code |= 1 << b;
  }
  return code >= 1 << (bits - 1) ? code - (1 << bits) : code;
}

std::vector<double> read_payload(const codec::Spec& spec, std::span<const std::byte> bytes,
                                 std::uint64_t n, const Words& words) {
  std::vector<double> out(n, 0.0);
  const auto each = [&](auto&& value) {
    for (std::uint64_t i = 0; i < n; ++i) out[i] = value(i);
  };
  switch (spec.kind) {
    case Kind::kNone:
    case Kind::kPowerSgd:
    case Kind::kAcpSgd:
      each([&](std::uint64_t i) { return read_f32(bytes, 4 * i); });
      break;
    case Kind::kFp16:
    case Kind::kBf16:
      each([&](std::uint64_t i) {
        const std::uint16_t bits = read_u16(bytes, 2 * i);
        return spec.kind == Kind::kFp16 ? half_value(bits) : bfloat_value(bits);
      });
      break;
    case Kind::kSign:
    case Kind::kSignum:
      each([&](std::uint64_t i) { return read_bit(bytes, 0, i) ? -1.0 : 1.0; });
      break;
    case Kind::kEfSign:
      each([&](std::uint64_t i) {
        return read_bit(bytes, 4, i) ? -read_f32(bytes, 0) : read_f32(bytes, 0);
      });
      break;
    case Kind::kOneBit:
      each([&](std::uint64_t i) { return read_f32(bytes, read_bit(bytes, 8, i) ? 4 : 0); });
      break;
    case Kind::kTopK:
    case Kind::kChunkTopK:
    case Kind::kDgc:
    case Kind::kRedSync:
    case Kind::kRedSyncQ: {
      for (const Entry& entry : read_entries(spec, bytes, n)) {
        if (entry.index < n) out[entry.index] = entry.value;
      }
      break;
    }
    case Kind::kRandomK: {
      const std::uint64_t k = codec::kept_elements(spec, n);
      const auto values = read_values(spec.value, bytes, 0, k);
      for (std::uint64_t j = 0; j < k; ++j) {
        const std::uint64_t width = (j + 1) * n / k - j * n / k;
        const double factor = spec.unbiased ? static_cast<double>(width) : 1.0;
        out[stratum_index(words, j, k, n)] = factor * values[j].value;
      }
      break;
    }
    case Kind::kInt8:
    case Kind::kQsgd: {
      const double steps = spec.kind == Kind::kInt8 ? 1.0 : (1 << (spec.bits - 1)) - 1;
      each([&](std::uint64_t i) {
        return read_code(spec, bytes, n, i) * (read_f32(bytes, 4 * (i / spec.block)) / steps);
      });
      break;
    }
    case Kind::kTernGrad:
      each([&](std::uint64_t i) { return ternary(bytes, n, i); });
      break;
    case Kind::kKashin:
      return read_kashin(spec, bytes, n, words);
    case Kind::kNatural:
      each([&](std::uint64_t i) { return natural(bytes[i]); });
      break;
  }
  return out;
}

}  // namespace gradpress::test
