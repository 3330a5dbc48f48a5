// What the sparsifiers share: who was sent, the payload of pairs, and the encode around a choice.
#pragma once

#include <gradpress/codec.h>

#include <cstdint>
#include <memory>
#include <span>

#include "codec/candidates.h"
#include "codec/sparse_wire.h"
#include "codec/state.h"
#include "kernels/random.h"
#include "spec/spec.h"

namespace gradpress::codec {

/// A codec that sends some elements and nothing of the others.
class Sparsifier : public Codec {
 public:
  /// One shard's payload, as this codec's encode made it.
  struct Sent {
    std::span<const std::byte> payload;
    kernels::RandomKey random = {};  ///< shard_key of the encode
  };
  /// values[i] ← 0 for each element i that the payload carries, whatever value it carries for it.
  /// Returns Σ|values[i]| of what that dropped. Requires: `values` is the payload's shard.
  virtual double drop_sent(const Sent& sent, std::span<float> values) const = 0;

 protected:
  using Codec::Codec;
};

/// The random key of shard `index` of a state's encode in `step`.
kernels::RandomKey shard_key(const StateOptions& options, std::uint64_t step, std::uint32_t index);

/// The residual, and the scratch that selection works in, which is made for one spec alone.
class SparseState : public ResidualState {
 public:
  struct Needs {
    const Spec& spec;
    std::uint64_t sample_elems = 0;  ///< the most that one shard's threshold is sampled from
  };
  SparseState(const StateOptions& options, bool feedback, const Needs& needs);

  const Spec& spec() const { return spec_; }
  Candidates& candidates() { return candidates_; }

 private:
  Spec spec_;
  Candidates candidates_;
};

/// A sparsifier that chooses by size. Payload, unless overridden: c u32 indices that ascend
/// strictly, c f32 values; or coded entries, where the text asks for them.
class SizeCodec : public Sparsifier {
 public:
  std::size_t payload_bound(const Shape& shape, unsigned round) const override;
  double drop_sent(const Sent& sent, std::span<float> values) const override;

 protected:
  explicit SizeCodec(const Spec& spec);

  const Spec& spec() const { return spec_; }

  /// The contraction of a payload that carries the `count` largest of a shape's n elements, as far
  /// as the coded values let one say.
  double contraction_of(double count, std::uint64_t elements) const;

  /// One shard of an encode call.
  struct Shard {
    std::uint32_t shards = 1;
    std::uint32_t index = 0;
    std::uint64_t elements = 0;
    std::uint64_t kept = 0;  ///< k
  };
  /// What decides the candidates, all but the data.
  struct Wanted {
    kernels::KeyMap key = {};
    std::uint64_t sample_elems = 0;
    double sample_ratio = 0.0;
  };
  virtual Wanted wanted(const SparseState& state, const Shard& shard) const;
  /// Cuts the candidates to what is sent, at most k. What later steps build on is only noted.
  virtual void choose(SparseState& state, const Shard& shard,
                      const kernels::ScanTotals& totals) const = 0;
  /// Gathers the candidates of a shard.
  virtual kernels::ScanTotals collect(SparseState& state, const Candidates::Source& source) const;
  /// Every shard was in range: the step counts, and what choose() noted holds.
  virtual void keep_noted(SparseState& state) const;

  /// Writes what was chosen of a shard; returns the payload's bytes.
  virtual std::size_t write(const Candidates& chosen, std::uint64_t elements,
                            std::span<std::byte> out) const;
  /// Takes out of `residual` (the shard's) what the payload carries.
  virtual void settle(std::span<const std::byte> payload, std::span<float> residual) const;
  /// The bytes of a payload that are indices. Requires: a length that write() could have made; no
  /// coded entries.
  virtual std::span<const std::byte> indices(std::span<const std::byte> payload) const;

 private:
  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override;
  Result<std::size_t> do_encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                                std::span<std::size_t> shard_bytes) const override;
  Status do_decode(State& state, const DecodeArgs& args, std::span<float> dst) const override;

  Spec spec_;
  bool coded_;  ///< entries
  SparseWire wire_;
};

/// kCorruptPayload for indices that do not ascend or do not fit.
Status bad_indices(const std::string& codec, std::uint64_t elements);
/// kCorruptPayload for a length that no payload of `elements` has.
Status bad_length(const std::string& codec, std::uint64_t elements, std::uint64_t most_bytes,
                  std::uint64_t got_bytes);

}  // namespace gradpress::codec
