// What the elements of a buffer are, to those who sum or send them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradpress {

enum class DataType : std::uint8_t { kBytes, kFloat32, kFloat16, kBfloat16 };

constexpr std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::kBytes:
      return 1;
    case DataType::kFloat32:
      return 4;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
  }
  return 1;
}

constexpr std::string_view type_name(DataType type) {
  switch (type) {
    case DataType::kBytes:
      return "bytes";
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat16:
      return "float16";
    case DataType::kBfloat16:
      return "bfloat16";
  }
  return "unknown";
}

}  // namespace gradpress
