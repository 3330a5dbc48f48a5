#include "kernels/panels.h"

#include <algorithm>
#include <cstring>

namespace gradpress::kernels {

void pack_panels(std::span<const float> factor, std::size_t length, std::size_t rank,
                 std::span<float> panels) {
  const PanelShape shape(length, rank);
  for (std::size_t k = 0; k < rank; ++k) {
    const std::size_t panel = k / kPanel;
    const float* from = factor.data() + k * length;
    float* to = panels.data() + shape.at(panel, 0) + k % kPanel * kWide;
    const std::size_t step = shape.width(panel) * kWide;
    for (std::size_t i = 0; i < length; i += kWide, from += kWide, to += step) {
      const std::size_t count = std::min(kWide, length - i);
      std::memcpy(to, from, count * sizeof(float));
      std::fill(to + count, to + kWide, 0.0F);
    }
  }
}

void unpack_panels(std::span<const float> panels, std::size_t length, std::size_t rank,
                   std::span<float> factor) {
  const PanelShape shape(length, rank);
  for (std::size_t k = 0; k < rank; ++k) {
    const std::size_t panel = k / kPanel;
    const float* from = panels.data() + shape.at(panel, 0) + k % kPanel * kWide;
    float* to = factor.data() + k * length;
    const std::size_t step = shape.width(panel) * kWide;
    for (std::size_t i = 0; i < length; i += kWide, from += step, to += kWide) {
      std::memcpy(to, from, std::min(kWide, length - i) * sizeof(float));
    }
  }
}

}  // namespace gradpress::kernels
