// The layout of a thin factor that the low-rank passes read in order: ranks in panels of four,
// within a panel groups of 8 rows, within a group rank after rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace gradpress::kernels {

inline constexpr std::size_t kWide = 8;   // virtual lanes, and rows of a panel's group
inline constexpr std::size_t kPanel = 4;  // ranks of a panel; the last one may have fewer

/// Where the panel of ranks from 4 · `panel` on begins, at group `group` of its rows.
struct PanelShape {
  std::size_t groups;
  std::size_t rank;

  PanelShape(std::size_t length, std::size_t ranks)
      : groups((length + kWide - 1) / kWide), rank(ranks) {}
  std::size_t panels() const { return (rank + kPanel - 1) / kPanel; }
  std::size_t width(std::size_t panel) const { return std::min(kPanel, rank - panel * kPanel); }
  std::size_t at(std::size_t panel, std::size_t group) const {
    return (panel * kPanel * groups + group * width(panel)) * kWide;
  }
};

/// Floats in the panels of a factor; rows past `length` are zero.
constexpr std::size_t panel_floats(std::size_t length, std::size_t rank) {
  return (length + kWide - 1) / kWide * kWide * rank;
}

/// From and to column after column. Requires: panels.size() == panel_floats(length, rank).
void pack_panels(std::span<const float> factor, std::size_t length, std::size_t rank,
                 std::span<float> panels);
void unpack_panels(std::span<const float> panels, std::size_t length, std::size_t rank,
                   std::span<float> factor);

}  // namespace gradpress::kernels
