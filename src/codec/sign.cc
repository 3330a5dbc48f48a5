#include <gradpress/codec.h>

#include <algorithm>

#include "codec/codecs.h"
#include "codec/state.h"
#include "kernels/random.h"
#include "kernels/sign.h"
#include "kernels/votes.h"
#include "spec/facts.h"

namespace gradpress::codec {

namespace {

/// The words of a step's zeros and ties: of the whole tensor, on every worker the same, whatever
/// the shards.
kernels::VoteWords vote_words(const StateOptions& options, std::uint64_t step,
                              std::uint64_t begin) {
  return {
      .key = kernels::random_key({.seed = options.seed, .tensor = options.tensor, .step = step}),
      .begin = static_cast<std::uint32_t>(begin)};
}

/// signSGD with majority vote: every worker sends its signs, the result is the sign of their sum.
/// Payload: ⌈n/32⌉ words of sign bits. Stateless: a vote has no residual.
///
/// A bit cannot say "none": a zero votes at random, with opposite signs on workers of even and of
/// odd rank, so that two of them cancel out. A tie is decided by the casting vote.
class SignCodec final : public Codec {
 public:
  explicit SignCodec(const Spec& spec) : Codec(to_text(spec), traits_of(spec)), spec_(spec) {}

  std::optional<double> contraction(const Shape& /*shape*/) const override { return std::nullopt; }
  std::size_t payload_bound(const Shape& shape, unsigned /*round*/) const override {
    return payload_bytes(spec_, shape);
  }

 private:
  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override {
    return std::make_unique<ResidualState>(options, feedback);
  }

  Result<std::size_t> do_encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                                std::span<std::size_t> shard_bytes) const override {
    const auto own = state_of<ResidualState>(name(), state);
    if (!own) return tl::unexpected(own.error());
    const StateOptions& options = (*own)->options();
    bool in_range = true;
    std::size_t used = 0;
    for (std::uint32_t index = 0; index < args.shards; ++index) {
      const ShardRange shard = shard_range(args.grad.size(), args.shards, index);
      const auto payload = out.subspan(used, payload_bound(Shape::flat(shard.count), 0));
      const auto bits = payload.first((shard.count + 7) / 8);
      kernels::VoteWords words = vote_words(options, args.step, shard.begin);
      words.flip = options.source.value_or(0) % 2 == 1;
      in_range = kernels::encode_votes(args.grad.subspan(shard.begin, shard.count), kGradientLimit,
                                       words, bits) &&
                 in_range;
      std::ranges::fill(payload.subspan(bits.size()), std::byte{0});
      shard_bytes[index] = payload.size();
      used += payload.size();
    }
    if (!in_range) return tl::unexpected(non_finite(name(), args.grad));
    return used;
  }

  Status do_decode(State& state, const DecodeArgs& args, std::span<float> dst) const override {
    const std::size_t want = payload_bound(Shape::flat(dst.size()), 0);
    if (args.payload.size() != want) {
      return Status::error(Code::kCorruptPayload, name(), ": ", dst.size(), " elements come in ",
                           want, " B, got ", args.payload.size(), " B");
    }
    kernels::add_levels(args.payload, {.positive = args.weight, .negative = -args.weight}, dst);
    if (!args.casting) return {};
    const auto own = state_of<ResidualState>(name(), state);
    if (!own) return own.error();
    kernels::add_casting_votes(0.5F * args.weight,
                               vote_words((*own)->options(), args.step, args.begin), dst);
    return {};
  }

  Spec spec_;
};

}  // namespace

std::unique_ptr<const Codec> make_sign(const Spec& spec) {
  return std::make_unique<SignCodec>(spec);
}

}  // namespace gradpress::codec
