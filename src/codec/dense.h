// What the dense quantisers share: every element travels, in a payload of known length per shard.
#pragma once

#include <gradpress/codec.h>

#include <memory>
#include <span>

#include "kernels/feedback.h"
#include "kernels/random.h"
#include "spec/spec.h"

namespace gradpress::codec {

/// Random numbers of one shard.
struct ShardKeys {
  kernels::RandomKey own = {};     ///< the worker's: its rounding
  kernels::RandomKey shared = {};  ///< the same on all workers, and in decode
};

/// Splits into shards, draws each shard's keys, and keeps the residual of an encode that met no
/// elements out of range.
class DenseCodec : public Codec {
 public:
  explicit DenseCodec(const Spec& spec);

  std::size_t payload_bound(const Shape& shape, unsigned round) const override;

 protected:
  const Spec& spec() const { return spec_; }

  /// Writes one shard's payload, exactly payload_bound bytes, and updates its residual. Returns
  /// whether the gradient was in range; otherwise payload and residual are not used.
  virtual bool encode_shard(const kernels::FeedbackPass& pass, const ShardKeys& keys,
                            std::span<std::byte> payload) const = 0;
  /// Adds weight × the payload's values. The length has been checked.
  virtual Status decode_shard(std::span<const std::byte> payload, kernels::RandomKey shared,
                              float weight, std::span<float> dst) const = 0;

 private:
  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override;
  Result<std::size_t> do_encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                                std::span<std::size_t> shard_bytes) const override;
  Status do_decode(State& state, const DecodeArgs& args, std::span<float> dst) const override;

  Spec spec_;
};

}  // namespace gradpress::codec
