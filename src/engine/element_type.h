// The element types in which callers may keep gradients; the engine itself works on float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace gradpress::engine {

enum class ElementType : std::uint8_t { kFloat32, kFloat16, kBfloat16, kFloat64 };

constexpr std::size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
    case ElementType::kBfloat16:
      return 2;
    case ElementType::kFloat32:
      return 4;
    case ElementType::kFloat64:
      return 8;
  }
  return 4;
}

/// NaN stays NaN; a double beyond float32's range becomes infinity.
/// Requires: `from` holds out.size() elements, aligned to their size.
void to_floats(const std::byte* from, ElementType type, std::span<float> out);
/// Rounds to nearest even. NaN stays NaN; what is beyond the type's range becomes infinity.
/// Requires: `to` has memory for values.size() elements, aligned to their size.
void from_floats(std::span<const float> values, ElementType type, std::byte* to);

}  // namespace gradpress::engine
