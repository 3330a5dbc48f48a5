#include <gradpress/shape.h>

#include <algorithm>
#include <limits>

namespace gradpress {

namespace {

std::uint64_t saturating_product(std::span<const std::uint64_t> factors) {
  std::uint64_t product = 1;
  for (const std::uint64_t factor : factors) {
    if (factor == 0) return 0;
    if (product > std::numeric_limits<std::uint64_t>::max() / factor) {
      product = std::numeric_limits<std::uint64_t>::max();
    } else {
      product *= factor;
    }
  }
  return product;
}

}  // namespace

Shape::Shape(std::initializer_list<std::uint64_t> dims) {
  for (const std::uint64_t dim : dims) {
    if (count_ < kMaxDims) {
      dims_[count_++] = dim;
    } else {
      const std::uint64_t folded[] = {dims_[kMaxDims - 1], dim};
      dims_[kMaxDims - 1] = saturating_product(folded);
    }
  }
}

Result<Shape> Shape::from(std::span<const std::uint64_t> dims) {
  if (dims.size() > kMaxDims) {
    return fail(Code::kInvalidArgument, "a shape has at most ", kMaxDims, " dimensions, got ",
                dims.size(), ": fold the trailing ones");
  }
  Shape shape;
  std::copy(dims.begin(), dims.end(), shape.dims_.begin());
  shape.count_ = dims.size();
  return shape;
}

std::uint64_t Shape::elements() const { return saturating_product(dims()); }

std::uint64_t Shape::cols() const { return count_ < 2 ? 1 : saturating_product(dims().subspan(1)); }

std::string Shape::to_string() const {
  std::string text = "[";
  for (std::size_t i = 0; i < count_; ++i) {
    if (i > 0) text += ", ";
    detail::append_number(text, dims_[i]);
  }
  return text + "]";
}

ShardRange shard_range(std::uint64_t elements, std::uint32_t shards, std::uint32_t index) {
  const std::uint64_t width = elements / shards + (elements % shards != 0 ? 1 : 0);
  const std::uint64_t begin = std::min(elements, width * index);
  return {.begin = begin, .count = std::min(width, elements - begin)};
}

}  // namespace gradpress
