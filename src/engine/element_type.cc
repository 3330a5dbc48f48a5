#include "engine/element_type.h"

#include <algorithm>
#include <cstring>

#include "comm/half.h"
#include "kernels/cast.h"

namespace gradpress::engine {

namespace {

/// From here on a half rounds to infinity.
constexpr float kFloat16End = 65520.0F;
/// What the kernel rounds without a look at overflow.
constexpr float kBfloat16End = 0x1.0p127F;

template <class Stored, class Convert>
void read_each(const std::byte* from, std::span<float> out, const Convert& convert) {
  const auto* values = reinterpret_cast<const Stored*>(from);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = convert(values[i]);
}

template <class Stored, class Convert>
void write_each(std::span<const float> values, std::byte* to, const Convert& convert) {
  auto* out = reinterpret_cast<Stored*>(to);
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = convert(values[i]);
}

/// The kernels add. To -0 they add without changing any value, -0 included.
std::span<const std::byte> cleared(const std::byte* from, std::span<float> out) {
  std::ranges::fill(out, -0.0F);
  return {from, 2 * out.size()};
}

}  // namespace

// The kernels leave out what is not finite and say so: only then the slow conversion runs.
void to_floats(const std::byte* from, ElementType type, std::span<float> out) {
  switch (type) {
    case ElementType::kFloat32:
      if (!out.empty()) std::memcpy(out.data(), from, out.size_bytes());
      return;
    case ElementType::kFloat16:
      if (kernels::add_fp16(cleared(from, out), 1.0F, out)) return;
      return read_each<std::uint16_t>(from, out, comm::float16_to_float);
    case ElementType::kBfloat16:
      if (kernels::add_bf16(cleared(from, out), 1.0F, out)) return;
      return read_each<std::uint16_t>(from, out, comm::bfloat16_to_float);
    case ElementType::kFloat64:
      return read_each<double>(from, out, [](double value) { return static_cast<float>(value); });
  }
}

void from_floats(std::span<const float> values, ElementType type, std::byte* to) {
  const std::span<std::byte> halves(to, 2 * values.size());
  switch (type) {
    case ElementType::kFloat32:
      if (!values.empty()) std::memcpy(to, values.data(), values.size_bytes());
      return;
    case ElementType::kFloat16:
      if (kernels::encode_fp16({.g = values, .residual = {}, .limit = kFloat16End}, halves)) return;
      return write_each<std::uint16_t>(values, to, comm::float_to_float16);
    case ElementType::kBfloat16:
      if (kernels::encode_bf16({.g = values, .residual = {}, .limit = kBfloat16End}, halves)) {
        return;
      }
      return write_each<std::uint16_t>(values, to, comm::float_to_bfloat16);
    case ElementType::kFloat64:
      return write_each<double>(values, to, [](float value) { return double{value}; });
  }
}

}  // namespace gradpress::engine
