// Momentum correction, as DGC and RedSync do it: momentum accumulates before the sparsifier, so
// that elements sent late arrive with the momentum they would have had.
#pragma once

#include <gradpress/codec.h>

#include <cstdint>
#include <memory>

namespace gradpress::codec {

struct MomentumOptions {
  double momentum = 0.9;  ///< μ, from 0 up to, not including, 1
  bool nesterov = false;
  bool masking = true;  ///< momentum factor masking: what is sent loses its momentum
  /// Gradients of a larger norm than this are scaled down to it before they accumulate; 0: never.
  /// It is the norm of the workers' summed gradient: one worker's own is clipped at
  /// clip_norm / √workers.
  double clip_norm = 0.0;
  std::uint32_t workers = 1;
};

/// `inner`, a sparsifier, fed with momentum u instead of the gradient g (scaled by clipping):
/// u ← μu + g, encode u; or for Nesterov u ← μ(u + g), encode u + g. Then u ← 0 where it was sent.
///
/// Its states are MomentumStates. Two floats per element more than inner's (three for Nesterov),
/// three passes more per encode; a gradient that is refused (kNonFinite) changes neither residual
/// nor momentum. Payloads are inner's. Errors: kInvalidArgument when inner sends whole tensors or
/// an option is out of range.
Result<std::unique_ptr<const Codec>> with_momentum(std::unique_ptr<const Codec> inner,
                                                   const MomentumOptions& options);

/// The residual is inner's; scale() scales the momentum too, and the extras hold it.
class MomentumState : public State {
 public:
  /// Σ|u| that masking has dropped since the state was made: not conserved, but known.
  virtual double dropped() const = 0;
  virtual std::span<const float> momentum() const = 0;
  /// Replaces it. Errors: kInvalidArgument on a wrong size, kNonFinite; it is then unchanged.
  virtual Status load_momentum(std::span<const float> momentum) = 0;
};

/// Whether with_momentum takes a codec of this kind.
bool is_sparsifier(const Codec& codec);

}  // namespace gradpress::codec
