// What the one-bit codecs share: a few floats, then a sign bit per element.
#pragma once

#include <gradpress/codec.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codec/state.h"
#include "kernels/sign.h"
#include "spec/spec.h"

namespace gradpress::codec {

/// Holds x = gradient + residual of the last step and, per shard, what was sent for each sign; the
/// residual is x − sent level, formed when x is next read.
class LevelState final : public ResidualState {
 public:
  using ResidualState::ResidualState;

  /// What shard `index` of `shards` sent last; settles first if the last step had other shards.
  kernels::SignLevels sent(std::uint32_t shards, std::uint32_t index);
  /// The same of the encode that is under way: in force with renewed().
  void set_sent(std::uint32_t shards, std::uint32_t index, kernels::SignLevels levels);

 protected:
  void correct(std::uint64_t begin, std::span<float> values) const override;
  void scale_correction(float factor) override;
  void clear_correction() override { sent_[now()].clear(); }

 private:
  /// By version: one per shard of its encode; empty: nothing to correct.
  std::array<std::vector<kernels::SignLevels>, 2> sent_;
};

/// Payload: `header_floats` f32 levels, then the sign bits in 32-bit words, lowest bit first, 1 =
/// negative.
class LevelCodec : public Codec {
 public:
  LevelCodec(const Spec& spec, std::size_t header_floats);

  std::size_t payload_bound(const Shape& shape, unsigned round) const override;

 protected:
  /// The two levels that `sums` of `elements` call for.
  virtual kernels::SignLevels levels(const kernels::SignSums& sums,
                                     std::uint64_t elements) const = 0;
  virtual void write_header(kernels::SignLevels levels, std::span<std::byte> header) const = 0;
  virtual kernels::SignLevels read_header(std::span<const std::byte> header) const = 0;

 private:
  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override;
  Result<std::size_t> do_encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                                std::span<std::size_t> shard_bytes) const override;
  Status do_decode(State& state, const DecodeArgs& args, std::span<float> dst) const override;

  Spec spec_;
  std::size_t header_bytes_;
};

}  // namespace gradpress::codec
