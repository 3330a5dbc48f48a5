// Values that the group contract sends: of any type, known for every rank and place, with sums that
// are exact or rounded once.
#pragma once

#include <gradpress/data_type.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace gradpress::test {

/// Values of one type as bytes, made from and read as doubles: written for clearness, not speed.
class Values {
 public:
  Values(DataType type, std::size_t count)
      : type_(type), memory_((count * size_of(type) + 7) / 8), count_(count) {}

  std::size_t size() const { return count_; }
  std::span<std::byte> bytes() {
    return std::as_writable_bytes(std::span(memory_)).first(count_ * size_of(type_));
  }
  std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(memory_)).first(count_ * size_of(type_));
  }
  void set(std::size_t i, double value) {
    std::byte* place = bytes().data() + i * size_of(type_);
    if (type_ == DataType::kBytes) {
      *place = static_cast<std::byte>(static_cast<int>(value));
    } else {
      const auto number = static_cast<float>(value);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &number, sizeof bits);
      if (type_ == DataType::kFloat16) bits = to_float16(value);
      if (type_ == DataType::kBfloat16) bits >>= 16;
      std::memcpy(place, &bits, size_of(type_));
    }
  }
  double get(std::size_t i) const {
    const std::byte* place = bytes().data() + i * size_of(type_);
    if (type_ == DataType::kBytes) return std::to_integer<int>(*place);
    std::uint32_t bits = 0;
    std::memcpy(&bits, place, size_of(type_));
    if (type_ == DataType::kFloat16) return from_float16(bits);
    if (type_ == DataType::kBfloat16) bits <<= 16;
    float number = 0.0F;
    std::memcpy(&number, &bits, sizeof number);
    return static_cast<double>(number);
  }

 private:
  /// Exact for the values used here: zero and normal numbers that fit.
  static std::uint32_t to_float16(double value) {
    if (value == 0.0) return 0;
    int exponent = 0;
    const double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
    const auto mantissa = static_cast<std::uint32_t>(std::ldexp(fraction, 11)) - 1024U;
    const auto biased = static_cast<std::uint32_t>(exponent + 14);
    return (value < 0.0 ? 0x8000U : 0U) | biased << 10 | mantissa;
  }
  static double from_float16(std::uint32_t bits) {
    const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>(bits >> 10 & 31U);
    const double mantissa = bits & 1023U;
    if (exponent == 0) return sign * std::ldexp(mantissa, -24);
    return sign * std::ldexp(mantissa + 1024.0, exponent - 25);
  }

  DataType type_;
  std::vector<std::uint64_t> memory_;
  std::size_t count_;
};

/// Bits of the significand, hidden one included.
inline int precision_of(DataType type) {
  return type == DataType::kFloat32 ? 24 : type == DataType::kFloat16 ? 11 : 8;
}

/// A whole number that the type holds exactly, different for rank and place. Sums over a few ranks
/// are exact in float32, but need rounding in two-byte floats.
inline double value_at(DataType type, unsigned rank, std::size_t i) {
  std::uint64_t hash = (i + 1) * 0x9E3779B97F4A7C15U + rank * 0xD1B54A32D192ED03U;
  hash ^= hash >> 29;
  hash *= 0xBF58476D1CE4E5B9U;
  hash ^= hash >> 32;
  if (type == DataType::kBytes) return static_cast<double>(hash % 256);
  const std::uint64_t range = (std::uint64_t{1} << std::min(precision_of(type), 20)) - 1;
  return static_cast<double>(hash % (2 * range + 1)) - static_cast<double>(range);
}

/// To nearest, ties to even, at the type's precision.
inline double rounded(DataType type, double value) {
  if (value == 0.0) return value;
  const int shift = precision_of(type) - 1 - std::ilogb(value);
  return std::ldexp(std::nearbyint(std::ldexp(value, shift)), -shift);
}

inline double sum_at(DataType type, unsigned ranks, std::size_t i) {
  double sum = 0.0;
  for (unsigned rank = 0; rank < ranks; ++rank) sum += value_at(type, rank, i);
  return rounded(type, sum);
}

inline Values values_of(DataType type, unsigned rank, std::size_t count, std::size_t first = 0) {
  Values values(type, count);
  for (std::size_t i = 0; i < count; ++i) values.set(i, value_at(type, rank, first + i));
  return values;
}

}  // namespace gradpress::test
