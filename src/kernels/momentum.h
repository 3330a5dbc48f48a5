// Momentum before sparsification: the accumulators of DGC and RedSync.
#pragma once

#include <span>

namespace gradpress::kernels {

struct MomentumArgs {
  float momentum = 0.0F;    ///< μ
  float grad_scale = 1.0F;  ///< what clipping multiplies the gradient by
  bool nesterov = false;
};

/// Whether no element of g is NaN or of magnitude `limit` and above, nor would any that
/// update_momentum makes be. Requires: equal sizes.
bool momentum_in_range(std::span<const float> g, std::span<const float> u, const MomentumArgs& args,
                       float limit);

/// With s = grad_scale · g: u ← μu + s, or for Nesterov u ← μ(u + s) and sum ← u + s.
/// Requires: equal sizes; sum is empty unless nesterov.
void update_momentum(std::span<const float> g, std::span<float> u, const MomentumArgs& args,
                     std::span<float> sum);

}  // namespace gradpress::kernels
