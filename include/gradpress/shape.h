// A tensor's shape and the two views of it that codecs use: flat, and as a matrix.
#pragma once

#include <gradpress/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace gradpress {

/// Larger tensors are split before they are encoded: payloads carry 32-bit indices.
inline constexpr std::uint64_t kMaxElements = (std::uint64_t{1} << 32) - 1;

/// Up to kMaxDims extents. Cheap to copy, no allocation.
class GRADPRESS_API Shape {
 public:
  static constexpr std::size_t kMaxDims = 8;

  /// No dimensions: a scalar, one element.
  constexpr Shape() = default;
  /// Requires: at most kMaxDims extents (more are folded into the last one).
  Shape(std::initializer_list<std::uint64_t> dims);
  /// Errors: kInvalidArgument on more than kMaxDims extents.
  static Result<Shape> from(std::span<const std::uint64_t> dims);
  /// A flat tensor of `elements`.
  static Shape flat(std::uint64_t elements) { return Shape{elements}; }

  std::span<const std::uint64_t> dims() const { return {dims_.data(), count_}; }
  /// The product of the extents; saturates instead of wrapping.
  std::uint64_t elements() const;
  /// Two or more dimensions: low-rank codecs compress these and send the others dense.
  bool is_matrix() const { return count_ > 1; }
  /// The matrix view: the first extent by the product of the rest (an (O,I,h,w) kernel is O ×
  /// I·h·w).
  std::uint64_t rows() const { return count_ == 0 ? 1 : dims_[0]; }
  std::uint64_t cols() const;
  /// "[64, 3, 7, 7]"
  std::string to_string() const;

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::uint64_t, kMaxDims> dims_{};
  std::size_t count_ = 0;
};

/// One shard of a flat tensor: elements [begin, begin + count).
struct ShardRange {
  std::uint64_t begin = 0;
  std::uint64_t count = 0;
};

/// Shard `index` of `shards`: every shard has ⌈elements/shards⌉ elements, the last ones fewer or
/// none. Requires: shards > 0, index < shards.
GRADPRESS_API ShardRange shard_range(std::uint64_t elements, std::uint32_t shards,
                                     std::uint32_t index);

}  // namespace gradpress
