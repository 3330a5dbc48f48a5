#include "codec/dense.h"

#include "codec/state.h"
#include "spec/facts.h"

namespace gradpress::codec {

namespace {

ShardKeys keys_of(const StateOptions& options, std::uint64_t step, std::uint64_t shard) {
  kernels::RandomOrigin origin{.seed = options.seed,
                               .tensor = options.tensor,
                               .step = step,
                               .site = options.site,
                               .shard = shard};
  const kernels::RandomKey shared = kernels::random_key(origin);
  origin.source = options.source;
  return {.own = kernels::random_key(origin), .shared = shared};
}

}  // namespace

DenseCodec::DenseCodec(const Spec& spec) : Codec(to_text(spec), traits_of(spec)), spec_(spec) {}

std::size_t DenseCodec::payload_bound(const Shape& shape, unsigned /*round*/) const {
  return payload_bytes(spec_, shape);
}

std::unique_ptr<State> DenseCodec::do_make_state(const StateOptions& options, bool feedback) const {
  return std::make_unique<ResidualState>(options, feedback);
}

Result<std::size_t> DenseCodec::do_encode(State& state, const EncodeArgs& args,
                                          std::span<std::byte> out,
                                          std::span<std::size_t> shard_bytes) const {
  const auto own = state_of<ResidualState>(name(), state);
  if (!own) return tl::unexpected(own.error());
  ResidualState& kept = **own;
  const StateOptions& options = kept.options();
  const kernels::Renewal residual = kept.renewal();
  bool in_range = true;
  std::size_t used = 0;
  for (std::uint32_t index = 0; index < args.shards; ++index) {
    const ShardRange shard = shard_range(args.grad.size(), args.shards, index);
    const kernels::FeedbackPass pass{.g = args.grad.subspan(shard.begin, shard.count),
                                     .residual = kept.has_feedback()
                                                     ? residual.subspan(shard.begin, shard.count)
                                                     : kernels::Renewal(),
                                     .limit = kGradientLimit};
    const ShardKeys keys = keys_of(options, args.step, std::uint64_t{options.first_shard} + index);
    shard_bytes[index] = payload_bound(Shape::flat(shard.count), 0);
    in_range = encode_shard(pass, keys, out.subspan(used, shard_bytes[index])) && in_range;
    used += shard_bytes[index];
  }
  // What was written is not in force yet: nothing of a refused gradient is.
  if (!in_range) return tl::unexpected(non_finite(name(), args.grad));
  kept.renewed();
  return used;
}

Status DenseCodec::do_decode(State& state, const DecodeArgs& args, std::span<float> dst) const {
  const std::size_t want = payload_bound(Shape::flat(dst.size()), 0);
  if (args.payload.size() != want) {
    return Status::error(Code::kCorruptPayload, name(), ": ", dst.size(), " elements come in ",
                         want, " B, got ", args.payload.size(), " B");
  }
  const auto own = state_of<ResidualState>(name(), state);
  if (!own) return own.error();
  return decode_shard(args.payload, keys_of((*own)->options(), args.step, args.shard).shared,
                      args.weight, dst);
}

}  // namespace gradpress::codec
