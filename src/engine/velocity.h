// Momentum after the mean: for tensors that no sparsifier encodes, so that what a step leaves means
// the same for all of them.
#pragma once

#include <gradpress/engine.h>
#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "codec/momentum.h"
#include "kernels/momentum.h"
#include "sync/snapshot.h"

namespace gradpress::engine {

codec::MomentumOptions momentum_options(const MomentumCorrection& correction);

/// The same on every rank, because the means are.
/// Threads: the engine's caller alone. Memory: a float per element of the tensors it serves.
class Velocity {
 public:
  Velocity(const MomentumCorrection& correction, std::uint32_t workers, std::size_t tensors);

  /// Whether apply() stays in range: no element of the mean, nor of the momentum that it would
  /// make, is of kGradientLimit or above. Where a sparsifier had the momentum already (`before`),
  /// yes.
  bool fits(std::size_t tensor, std::span<const float> mean, bool before) const;
  /// Turns a tensor's mean gradient into the update's direction, v ← μv + g or Nesterov's, and adds
  /// what is carried; where a sparsifier had the momentum already, it adds that alone.
  /// Requires: fits().
  void apply(std::size_t tensor, std::span<float> mean, bool before);

  /// The momentum of the mean; empty: none yet.
  std::span<const float> momentum(std::size_t tensor) const { return velocity_[tensor].span(); }
  void set(std::size_t tensor, std::span<const float> momentum);
  void drop(std::size_t tensor) { velocity_[tensor] = Buffer<float>(); }
  /// Adds it to the tensor's next result: a residual of numbers that had their momentum.
  void carry(std::size_t tensor, std::span<const float> mean);
  std::span<const float> carried(std::size_t tensor) const { return carried_[tensor].span(); }
  void scale(float factor);

  void save(std::size_t tensor, sync::ByteWriter& out) const;
  /// Errors: kCorruptPayload on another number of elements.
  Status load(std::size_t tensor, std::size_t elements, sync::ByteReader& in);
  /// Adds what was carried of a tensor when `in` was saved.
  /// Errors: kCorruptPayload on bytes that are not of a tensor of out.size() elements.
  static Status add_saved_carried(sync::ByteReader& in, std::span<float> out);

 private:
  kernels::MomentumArgs step_of(std::span<const float> mean) const;

  const MomentumCorrection correction_;
  const std::uint32_t workers_;
  std::vector<Buffer<float>> velocity_;
  std::vector<Buffer<float>> carried_;
  std::vector<float> sum_;  ///< Nesterov's
};

}  // namespace gradpress::engine
