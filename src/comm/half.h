// Two-byte floats to float32 and back, one at a time.
#pragma once

#include <bit>
#include <cstdint>

namespace gradpress::comm {

/// IEEE binary16. Exact; a NaN stays one.
inline float float16_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7FFFU) << 13;
  // The exponent moves by 127 - 15 through a product, which makes subnormals normal on the way.
  const float value = std::bit_cast<float>(magnitude) * 0x1.0p112F;
  const std::uint32_t special = magnitude >= 0x0F800000U ? 0x7F800000U : 0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | special | sign);
}

/// To nearest, ties to even; 65520 and above become infinity, a NaN a quiet one.
inline std::uint16_t float_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (magnitude > 0x7F800000U) {
    half = 0x7E00U;
  } else if (magnitude >= 0x47800000U) {
    half = 0x7C00U;  // 65536 and above
  } else if (magnitude >= 0x38800000U) {
    const std::uint32_t rebiased = magnitude - 0x38000000U;
    half = (rebiased + 0xFFFU + ((rebiased >> 13) & 1U)) >> 13;  // may carry into infinity
  } else {
    // Below 2^-14: one unit in the last place of 0.5 is the smallest half, so the sum rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    half = std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0.5F);
  }
  return static_cast<std::uint16_t>(half | sign);
}

/// bfloat16. Exact.
inline float bfloat16_to_float(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

/// To nearest, ties to even; a NaN becomes a quiet one.
inline std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace gradpress::comm
