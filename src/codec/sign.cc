#include <gradpress/codec.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "codec/codecs.h"
#include "codec/momentum.h"
#include "codec/state.h"
#include "kernels/momentum.h"
#include "kernels/random.h"
#include "kernels/sign.h"
#include "kernels/vector.h"
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

/// Signum's mean gradient m ← μm + (1 − μ)g, of a worker's own gradients alone: the encode after
/// aggregation, of votes, has none.
class VoteState final : public MomentumState {
 public:
  VoteState(const StateOptions& options, bool averages)
      : options_(options),
        mean_(averages && options.site == 0 ? options.shape.elements() : 0),
        before_(mean_.size()) {}

  const Shape& shape() const noexcept override { return options_.shape; }
  bool has_feedback() const noexcept override { return false; }
  void materialise(std::span<float> out) const override { std::ranges::fill(out, 0.0F); }
  Status load(std::span<const float> residual) override {
    if (residual.size() != options_.shape.elements()) {
      return Status::error(Code::kInvalidArgument, "a residual of ", residual.size(),
                           " elements was given to a state of shape ", shape().to_string());
    }
    if (kernels::first_out_of_range(residual, kGradientLimit) != kernels::kAllInRange) {
      return non_finite("residual", residual);
    }
    commit();
    return {};
  }
  void scale(float factor) override {
    commit();
    kernels::scale(mean_.span(), factor);
  }
  double norm() const override { return 0.0; }

  std::vector<std::byte> save_extras() const override {
    const auto bytes = std::as_bytes(mean_.span());
    return {bytes.begin(), bytes.end()};
  }
  Status load_extras(std::span<const std::byte> bytes) override {
    if (bytes.size() != mean_.span().size_bytes()) {
      return Status::error(Code::kCorruptPayload, "votes: wanted a mean gradient of ",
                           mean_.span().size_bytes(), " B, got ", bytes.size(), " B");
    }
    std::vector<float> loaded(mean_.size());
    if (!loaded.empty()) std::memcpy(loaded.data(), bytes.data(), bytes.size());
    if (Status status = load_momentum(loaded); !status.is_ok()) {
      return Status::error(Code::kCorruptPayload, status.message());
    }
    return {};
  }

  double dropped() const override { return 0.0; }
  std::span<const float> momentum() const override { return mean_.span(); }
  Status load_momentum(std::span<const float> momentum) override {
    if (momentum.size() != mean_.size()) {
      return Status::error(Code::kInvalidArgument, "votes: wanted a mean gradient of ",
                           mean_.size(), " elements, got ", momentum.size());
    }
    if (kernels::first_out_of_range(momentum, kGradientLimit) != kernels::kAllInRange) {
      return non_finite("votes", momentum);
    }
    commit();
    std::ranges::copy(momentum, mean_.span().begin());
    return {};
  }
  void commit() override { is_kept_ = false; }
  void rewind() override {
    if (std::exchange(is_kept_, false)) std::swap(mean_, before_);
  }

  const StateOptions& options() const { return options_; }
  /// What is voted on; `grad` itself where nothing is averaged. Requires: finite elements.
  std::span<const float> take(std::span<const float> grad, double momentum) {
    if (mean_.empty()) return grad;
    std::ranges::copy(mean_.span(), before_.span().begin());
    is_kept_ = true;
    kernels::update_momentum(grad, mean_.span(),
                             {.momentum = static_cast<float>(momentum),
                              .grad_scale = static_cast<float>(1.0 - momentum)},
                             {});
    return mean_.span();
  }

 private:
  StateOptions options_;
  Buffer<float> mean_;    // empty: no momentum
  Buffer<float> before_;  // the last encode, so that it can be taken back to the bit
  bool is_kept_ = false;  ///< since commit()
};

/// signSGD with majority vote: every worker sends its signs, the result is the sign of their sum.
/// Payload: ⌈n/32⌉ words of sign bits. A vote has no residual. Signum votes on the sign of each
/// worker's mean gradient over time.
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
  std::unique_ptr<State> do_make_state(const StateOptions& options,
                                       bool /*feedback*/) const override {
    return std::make_unique<VoteState>(options, spec_.kind == Kind::kSignum);
  }

  Result<std::size_t> do_encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                                std::span<std::size_t> shard_bytes) const override {
    const auto own = state_of<VoteState>(name(), state);
    if (!own) return tl::unexpected(own.error());
    const StateOptions& options = (*own)->options();
    // Looked at before the mean is changed. Between two numbers in range, it stays in range.
    if (spec_.kind == Kind::kSignum &&
        kernels::first_out_of_range(args.grad, kGradientLimit) != kernels::kAllInRange) {
      return tl::unexpected(non_finite(name(), args.grad));
    }
    const std::span<const float> voted = (*own)->take(args.grad, spec_.momentum);
    bool in_range = true;
    std::size_t used = 0;
    for (std::uint32_t index = 0; index < args.shards; ++index) {
      const ShardRange shard = shard_range(args.grad.size(), args.shards, index);
      const auto payload = out.subspan(used, payload_bound(Shape::flat(shard.count), 0));
      const auto bits = payload.first((shard.count + 7) / 8);
      kernels::VoteWords words = vote_words(options, args.step, shard.begin);
      words.flip = options.source.value_or(0) % 2 == 1;
      in_range = kernels::encode_votes(voted.subspan(shard.begin, shard.count), kGradientLimit,
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
    const auto own = state_of<VoteState>(name(), state);
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
