#include "codec/momentum.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "codec/sparse.h"
#include "codec/state.h"
#include "codec/wire.h"
#include "kernels/momentum.h"
#include "kernels/vector.h"

namespace gradpress::codec {

namespace {

class BufferedMomentumState final : public MomentumState {
 public:
  BufferedMomentumState(std::unique_ptr<State> inner, const StateOptions& options, bool nesterov)
      : inner_(std::move(inner)),
        options_(options),
        momentum_(options.shape.elements()),
        before_(options.shape.elements()),
        sum_(nesterov ? options.shape.elements() : 0) {}

  const Shape& shape() const noexcept override { return options_.shape; }
  bool has_feedback() const noexcept override { return inner_->has_feedback(); }
  void materialise(std::span<float> out) const override { inner_->materialise(out); }
  Status load(std::span<const float> residual) override {
    Status status = inner_->load(residual);
    if (status) commit();
    return status;
  }
  double norm() const override { return inner_->norm(); }
  void scale(float factor) override {
    commit();
    inner_->scale(factor);
    kernels::scale(momentum_.span(), factor);
  }

  /// f64 dropped, n f32 momentum, then inner's.
  std::vector<std::byte> save_extras() const override {
    std::vector<std::byte> bytes;
    put(bytes, dropped_);
    const auto momentum = std::as_bytes(momentum_.span());
    bytes.insert(bytes.end(), momentum.begin(), momentum.end());
    const std::vector<std::byte> rest = inner_->save_extras();
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    return bytes;
  }

  Status load_extras(std::span<const std::byte> bytes) override {
    const std::size_t own = sizeof(double) + momentum_.span().size_bytes();
    if (bytes.size() < own) {
      return Status::error(Code::kCorruptPayload, "momentum: wanted at least ", own, " B, got ",
                           bytes.size(), " B");
    }
    const auto dropped = load_word<double>(bytes, 0);
    bool good = std::isfinite(dropped) && dropped >= 0.0;
    for (std::size_t at = sizeof(double); at < own; at += sizeof(float)) {
      good = good && std::fabs(load_word<float>(bytes, at)) < kGradientLimit;
    }
    if (!good) {
      return Status::error(Code::kCorruptPayload, "momentum: wanted finite values below ",
                           kGradientLimit, " in magnitude");
    }
    if (Status status = inner_->load_extras(bytes.subspan(own)); !status.is_ok()) return status;
    commit();
    dropped_ = dropped;
    if (!momentum_.empty()) {
      std::memcpy(momentum_.data(), bytes.data() + sizeof(double), own - sizeof(double));
    }
    return {};
  }

  double dropped() const override { return dropped_; }
  std::span<const float> momentum() const override { return momentum_.span(); }
  Status load_momentum(std::span<const float> momentum) override {
    if (momentum.size() != momentum_.size()) {
      return Status::error(Code::kInvalidArgument, "momentum: wanted ", momentum_.size(),
                           " elements, got ", momentum.size());
    }
    if (kernels::first_out_of_range(momentum, kGradientLimit) != kernels::kAllInRange) {
      return non_finite("momentum", momentum);
    }
    commit();
    std::ranges::copy(momentum, momentum_.span().begin());
    return {};
  }
  void commit() override {
    inner_->commit();
    is_kept_ = false;
  }
  void rewind() override {
    inner_->rewind();
    if (!std::exchange(is_kept_, false)) return;
    std::swap(momentum_, before_);
    dropped_ = dropped_before_;
  }

  /// Before an encode changes the momentum.
  void keep() {
    std::ranges::copy(momentum_.span(), before_.span().begin());
    dropped_before_ = dropped_;
    is_kept_ = true;
  }

  State& inner() { return *inner_; }
  const StateOptions& options() const { return options_; }
  std::span<float> accumulator() { return momentum_.span(); }
  /// u + g for Nesterov, else empty.
  std::span<float> sum() { return sum_.span(); }
  void add_dropped(double amount) { dropped_ += amount; }

 private:
  std::unique_ptr<State> inner_;
  StateOptions options_;
  Buffer<float> momentum_;
  Buffer<float> before_;  // a masked element cannot be computed back
  Buffer<float> sum_;
  double dropped_ = 0.0;
  double dropped_before_ = 0.0;
  bool is_kept_ = false;  ///< since commit()
};

std::string text_of(const Codec& inner, const MomentumOptions& options) {
  std::string text = inner.name() + (options.nesterov ? " with nesterov " : " with momentum ");
  detail::append_number(text, options.momentum);
  return text;
}

class MomentumCodec final : public Codec {
 public:
  MomentumCodec(std::unique_ptr<const Codec> inner, const Sparsifier& sparsifier,
                const MomentumOptions& options)
      : Codec(text_of(*inner, options), inner->traits()),
        inner_(std::move(inner)),
        sparsifier_(sparsifier),
        options_(options) {}

  /// What is sent depends on earlier gradients: there is no such bound on this one's error.
  std::optional<double> contraction(const Shape& /*shape*/) const override { return std::nullopt; }

  std::size_t payload_bound(const Shape& shape, unsigned round) const override {
    return inner_->payload_bound(shape, round);
  }

 private:
  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override {
    StateOptions inner_options = options;
    inner_options.feedback = feedback;
    // Whatever inner could refuse, this codec's make_state refused before: the traits are the same.
    return std::make_unique<BufferedMomentumState>(
        std::move(inner_->make_state(inner_options).value()), options, options_.nesterov);
  }

  /// What clipping multiplies this gradient by.
  float clip(std::span<const float> grad) const {
    if (options_.clip_norm == 0.0) return 1.0F;
    const double most = options_.clip_norm / std::sqrt(static_cast<double>(options_.workers));
    const double norm = std::sqrt(kernels::sum_squares(grad));
    return norm > most ? static_cast<float>(most / norm) : 1.0F;
  }

  Result<std::size_t> do_encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                                std::span<std::size_t> shard_bytes) const override {
    const auto found = state_of<BufferedMomentumState>(name(), state);
    if (!found) return tl::unexpected(found.error());
    BufferedMomentumState& own = **found;
    if (options_.nesterov && own.sum().size() != args.grad.size()) {
      return fail(Code::kInvalidArgument, name(), ": was given a state without Nesterov's sum");
    }
    // Looked at before anything is changed: what was multiplied by μ cannot be taken back exactly.
    if (kernels::first_out_of_range(args.grad, kGradientLimit) != kernels::kAllInRange) {
      return tl::unexpected(non_finite(name(), args.grad));
    }
    const kernels::MomentumArgs step{.momentum = static_cast<float>(options_.momentum),
                                     .grad_scale = clip(args.grad),
                                     .nesterov = options_.nesterov};
    if (!kernels::momentum_in_range(args.grad, own.accumulator(), step, kGradientLimit)) {
      return fail(Code::kNonFinite, name(), ": momentum would reach ", kGradientLimit,
                  " in magnitude; it and the residual were left as they were");
    }
    own.keep();
    kernels::update_momentum(args.grad, own.accumulator(), step,
                             options_.nesterov ? own.sum() : std::span<float>());
    EncodeArgs inner_args = args;
    inner_args.grad = options_.nesterov ? own.sum() : own.accumulator();
    auto used = inner_->encode(own.inner(), inner_args, out, shard_bytes);
    if (!used) own.rewind();
    if (used && options_.masking) mask(own, args, out, shard_bytes);
    return used;
  }

  void mask(BufferedMomentumState& own, const EncodeArgs& args, std::span<const std::byte> out,
            std::span<const std::size_t> shard_bytes) const {
    std::size_t begin = 0;
    for (std::uint32_t index = 0; index < args.shards; ++index) {
      const ShardRange range = shard_range(args.grad.size(), args.shards, index);
      own.add_dropped(sparsifier_.drop_sent({.payload = out.subspan(begin, shard_bytes[index]),
                                             .random = shard_key(own.options(), args.step, index)},
                                            own.accumulator().subspan(range.begin, range.count)));
      begin += shard_bytes[index];
    }
  }

  Status do_decode(State& state, const DecodeArgs& args, std::span<float> dst) const override {
    const auto own = state_of<BufferedMomentumState>(name(), state);
    if (!own) return own.error();
    return inner_->decode((*own)->inner(), args, dst);
  }

  std::unique_ptr<const Codec> inner_;
  const Sparsifier& sparsifier_;  // inner_ as what it is
  MomentumOptions options_;
};

}  // namespace

bool is_sparsifier(const Codec& codec) {
  // What is not sent must be kept, or it would lose its momentum.
  return codec.traits().supports_feedback && dynamic_cast<const Sparsifier*>(&codec) != nullptr;
}

Result<std::unique_ptr<const Codec>> with_momentum(std::unique_ptr<const Codec> inner,
                                                   const MomentumOptions& options) {
  const auto* sparsifier = dynamic_cast<const Sparsifier*>(inner.get());
  if (sparsifier == nullptr || !is_sparsifier(*inner)) {
    return fail(Code::kInvalidArgument, "momentum: wanted a sparsifier with error feedback, got ",
                inner == nullptr ? "none" : inner->name());
  }
  if (!(options.momentum >= 0.0 && options.momentum < 1.0)) {
    return fail(Code::kInvalidArgument, "momentum: wanted a factor from 0 to below 1, got ",
                options.momentum);
  }
  if (!(options.clip_norm >= 0.0 && std::isfinite(options.clip_norm)) || options.workers == 0) {
    return fail(Code::kInvalidArgument,
                "momentum: wanted a finite clip norm of 0 or more and at least one worker, got ",
                options.clip_norm, " and ", options.workers);
  }
  return std::make_unique<MomentumCodec>(std::move(inner), *sparsifier, options);
}

}  // namespace gradpress::codec
