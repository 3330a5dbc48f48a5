#include <gradpress/codec.h>
#include <algorithm>

#include "kernels/vector.h"

namespace gradpress {

std::optional<double> Codec::variance(const Shape& /*shape*/) const { return std::nullopt; }

std::size_t Codec::encode_bound(const Shape& shape, std::uint32_t shards, unsigned round) const {
  if (shards <= 1) return payload_bound(shape, round);
  // All shards but the last ones are equally wide: three bounds are enough, however many shards
  // there are.
  const std::uint64_t elements = shape.elements();
  const ShardRange first = shard_range(elements, shards, 0);
  if (first.count == 0) return shards * payload_bound(Shape::flat(0), round);
  const std::uint64_t whole = elements / first.count;
  const std::uint64_t rest = elements % first.count;
  const std::uint64_t empty = shards - whole - (rest != 0 ? 1 : 0);
  return whole * payload_bound(Shape::flat(first.count), round) +
         (rest != 0 ? payload_bound(Shape::flat(rest), round) : 0) +
         empty * payload_bound(Shape::flat(0), round);
}

Result<std::unique_ptr<State>> Codec::make_state(const StateOptions& options) const {
  if (options.shape.elements() > kMaxElements) {
    return fail(Code::kInvalidArgument, name_, ": shape ", options.shape.to_string(),
                " has more than ", kMaxElements, " elements: split the tensor");
  }
  const bool feedback = options.feedback.value_or(traits_.needs_feedback);
  if (feedback && !traits_.supports_feedback) {
    return fail(Code::kInvalidArgument, name_,
                ": error feedback was asked of a codec that has none");
  }
  std::unique_ptr<State> state = do_make_state(options, feedback);
  state->made_by_ = name_;
  return state;
}

Status Codec::check_made_here(const State& state) const {
  if (state.made_by_ == name_) return {};
  return Status::error(Code::kInvalidArgument, name_, ": was given a state that ", state.made_by_,
                       " made");
}

Result<std::size_t> Codec::encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                                  std::span<std::size_t> shard_bytes) const {
  if (Status status = check_made_here(state); !status.is_ok()) return tl::unexpected(status);
  const std::uint64_t elements = state.shape().elements();
  if (args.grad.size() != elements) {
    return fail(Code::kInvalidArgument, name_, ": a gradient of ", args.grad.size(),
                " elements was given to a state of shape ", state.shape().to_string(), " (",
                elements, " elements)");
  }
  if (args.shards == 0 || shard_bytes.size() != args.shards) {
    return fail(Code::kInvalidArgument, name_, ": ", args.shards, " shards with room for ",
                shard_bytes.size(), " sizes, wanted one size per shard and at least one shard");
  }
  if (args.shards > 1 && !traits_.shardable) {
    return fail(Code::kInvalidArgument, name_, ": asked for ", args.shards,
                " shards, but its payload has none: encode each shard with a state of its own");
  }
  if (args.round >= traits_.rounds) {
    return fail(Code::kInvalidArgument, name_, ": round ", args.round, " of ", traits_.rounds);
  }
  const std::size_t need = encode_bound(state.shape(), args.shards, args.round);
  if (out.size() < need) {
    return fail(Code::kInvalidArgument, name_, ": ", elements, " elements need ", need,
                " B of payload, the buffer has ", out.size(), " B");
  }
  if (args.round == 0) state.commit();
  return do_encode(state, args, out, shard_bytes);
}

Result<std::size_t> Codec::encode(State& state, const EncodeArgs& args,
                                  std::span<std::byte> out) const {
  std::size_t bytes = 0;
  return encode(state, args, out, std::span<std::size_t>(&bytes, 1));
}

Status Codec::decode(State& state, const DecodeArgs& args, std::span<float> dst) const {
  if (Status status = check_made_here(state); !status.is_ok()) return status;
  if (args.overwrite && !traits_.overwrites) std::ranges::fill(dst, 0.0F);
  return do_decode(state, args, dst);
}

Status Codec::finish(State& state, std::uint32_t workers, std::span<float> dst) const {
  if (Status status = check_made_here(state); !status.is_ok()) return status;
  if (workers == 0) {
    return Status::error(Code::kInvalidArgument, name_, ": a step of 0 workers cannot be finished");
  }
  if (traits_.combine == Combine::kVote) kernels::take_signs(dst);
  return do_finish(state, workers, dst);
}

Status Codec::do_finish(State& /*state*/, std::uint32_t /*workers*/,
                        std::span<float> /*dst*/) const {
  return {};
}

}  // namespace gradpress
