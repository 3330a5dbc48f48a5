#include <algorithm>
#include <array>
#include <cmath>

#include "codec/codecs.h"
#include "codec/sparse.h"
#include "codec/wire.h"
#include "kernels/sparse.h"
#include "kernels/vector.h"
#include "spec/facts.h"

namespace gradpress::codec {

namespace {

/// A type of its own: another codec's residual may be stored in another form.
class RandomKState final : public ResidualState {
 public:
  /// `drawn_elems`: room for the drawn elements of one shard, where their values are coded.
  RandomKState(const StateOptions& options, bool feedback, std::uint64_t drawn_elems)
      : ResidualState(options, feedback), drawn_(drawn_elems) {}

  std::span<float> drawn() { return drawn_.span(); }

 private:
  Buffer<float> drawn_;
};

/// The values of a payload, asked for one after the other. Those that are not finite are 0.
class DrawnValues {
 public:
  DrawnValues(ValueCode code, std::span<const std::byte> payload, std::uint64_t count)
      : reader_(code, payload), left_(count) {}

  bool finite() const { return finite_; }
  /// Requires: called at most `count` times.
  float next() {
    if (at_ == size_) fetch();
    return block_[at_++];
  }

 private:
  void fetch() {
    size_ = static_cast<std::size_t>(std::min<std::uint64_t>(block_.size(), left_));
    left_ -= size_;
    at_ = 0;
    if (reader_.read(std::span(block_).first(size_))) return;
    finite_ = false;
    std::ranges::fill(block_, 0.0F);
  }

  ValueReader reader_;
  std::uint64_t left_;
  std::size_t at_ = 0;
  std::size_t size_ = 0;
  bool finite_ = true;
  std::array<float, 256> block_;
};

/// One element at random out of each of k equal strata, the same on all workers, so that values
/// alone travel and their sum over workers decodes to the sum. Payload: k f32 values; or coded
/// ones. Unbiased: decode multiplies each value by the width of its stratum, n/k on average, which
/// is one over the probability that it was drawn; no residual.
class RandomKCodec final : public Sparsifier {
 public:
  explicit RandomKCodec(const Spec& spec)
      : Sparsifier(to_text(spec), traits_of(spec)), spec_(spec) {}

  /// Each element is sent with at least the probability it has in the widest stratum, ⌈n/k⌉ wide:
  /// that many of 2³² random words, rounded down, point at it.
  std::optional<double> contraction(const Shape& shape) const override {
    const std::uint64_t widest = widest_stratum(shape.elements());
    if (widest == 0) return 1.0;
    if (spec_.unbiased) return widest == 1 ? std::optional(1.0) : std::nullopt;
    const std::uint64_t least_words = (std::uint64_t{1} << 32) / widest;
    const double sent = static_cast<double>(least_words) * 0x1.0p-32;
    switch (spec_.value) {
      case ValueCode::kFp32:
        return sent;
      case ValueCode::kBf16:
        return sent * (1.0 - 0x1.0p-16);
      case ValueCode::kFp16:     // carries nothing of small elements
      case ValueCode::kTwoBits:  // a bin's mean is no further from its members than 0
        break;
    }
    return 0.0;
  }

  /// An element of a stratum of w elements is 0 with probability 1 − 1/w and else w times itself:
  /// its variance is (w − 1) times its square.
  std::optional<double> variance(const Shape& shape) const override {
    if (!spec_.unbiased) return std::nullopt;
    return static_cast<double>(std::max<std::uint64_t>(widest_stratum(shape.elements()), 1) - 1);
  }

  std::size_t payload_bound(const Shape& shape, unsigned /*round*/) const override {
    return payload_bytes(spec_, shape);
  }

  double drop_sent(const Sent& sent, std::span<float> values) const override {
    double dropped = 0.0;
    visit(values, sent.random, [&dropped](std::size_t, float& value) {
      dropped += static_cast<double>(std::fabs(value));
      value = 0.0F;
    });
    return dropped;
  }

 private:
  /// Elements added before the drawn ones among them are taken: few enough to still be cached.
  static constexpr std::size_t kBlock = 4096;
  static constexpr std::size_t kAhead = 64;
  /// Unbiased: sums of honest values are far below, and times a width of up to 2^32 it is finite.
  static constexpr float kScaledLimit = 0x1.0p95F;

  std::uint64_t widest_stratum(std::uint64_t elements) const {
    if (elements == 0) return 0;
    const std::uint64_t kept = kept_elements(spec_, elements);
    return (elements + kept - 1) / kept;
  }

  /// visit(number, element) for each drawn element of a shard.
  template <class T, class Visit>
  void visit(std::span<T> shard, kernels::RandomKey random, Visit visit) const {
    const std::uint64_t kept = kept_elements(spec_, shard.size());
    if (kept == 0) return;
    // Drawn elements lie far apart: each one's cache line is asked for kAhead visits before.
    kernels::Strata strata(shard.size(), kept, random);
    std::array<std::uint32_t, kAhead> drawn;
    for (std::uint64_t i = 0; i < kept + kAhead; ++i) {
      std::uint32_t& slot = drawn[i % kAhead];
      if (i >= kAhead && i - kAhead < kept) visit(i - kAhead, shard[slot]);
      if (i >= kept) continue;
      slot = strata.next();
      kernels::prefetch(shard.data() + slot);
    }
  }

  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override {
    const bool coded = has_coded_entries(spec_);
    return std::make_unique<RandomKState>(
        options, feedback, coded ? kept_elements(spec_, options.shape.elements()) : 0);
  }

  /// residual ← grad + residual; take(number, element, its place in the residual) for each drawn
  /// element of the sum.
  template <class Take>
  bool add_and_draw(std::span<const float> grad, const kernels::Renewal& residual,
                    kernels::RandomKey random, Take take) const {
    const std::uint64_t kept = kept_elements(spec_, grad.size());
    if (kept == 0) return true;
    bool in_range = true;
    kernels::Strata strata(grad.size(), kept, random);
    std::uint64_t next = strata.next();
    std::uint64_t number = 0;
    for (std::size_t begin = 0; begin < grad.size(); begin += kBlock) {
      const std::size_t count = std::min(kBlock, grad.size() - begin);
      in_range = kernels::add_in_range(grad.subspan(begin, count), residual.subspan(begin, count),
                                       kGradientLimit) &&
                 in_range;
      while (next < begin + count) {
        // What went past the caches would have to come back: its summands are still there.
        const float sum =
            residual.past_caches ? grad[next] + residual.from[next] : residual.to[next];
        take(number, sum, residual.to[next]);
        next = ++number < kept ? strata.next() : kMaxElements + 1;
      }
    }
    return in_range;
  }

  /// body(shard's range, its random key, its payload) for every shard; returns the bytes of all.
  template <class Body>
  std::size_t for_shards(const RandomKState& state, const EncodeArgs& args,
                         std::span<std::byte> out, std::span<std::size_t> shard_bytes,
                         Body body) const {
    std::size_t used = 0;
    for (std::uint32_t index = 0; index < args.shards; ++index) {
      const ShardRange range = shard_range(args.grad.size(), args.shards, index);
      shard_bytes[index] = payload_bound(Shape::flat(range.count), 0);
      body(range, shard_key(state.options(), args.step, index),
           out.subspan(used, shard_bytes[index]));
      used += shard_bytes[index];
    }
    return used;
  }

  Result<std::size_t> do_encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                                std::span<std::size_t> shard_bytes) const override {
    const auto own = state_of<RandomKState>(name(), state);
    if (!own) return tl::unexpected(own.error());
    RandomKState& residual = **own;
    if (!residual.has_feedback() &&
        kernels::first_out_of_range(args.grad, kGradientLimit) != kernels::kAllInRange) {
      return tl::unexpected(non_finite(name(), args.grad));
    }
    return has_coded_entries(spec_) ? encode_coded(residual, args, out, shard_bytes)
                                    : encode_plain(residual, args, out, shard_bytes);
  }

  /// The drawn elements move from the residual to the payload.
  Result<std::size_t> encode_plain(RandomKState& residual, const EncodeArgs& args,
                                   std::span<std::byte> out,
                                   std::span<std::size_t> shard_bytes) const {
    bool in_range = true;
    const std::size_t used = for_shards(
        residual, args, out, shard_bytes,
        [&](const ShardRange& range, kernels::RandomKey random, std::span<std::byte> payload) {
          const auto grad = args.grad.subspan(range.begin, range.count);
          const auto store = [payload](std::size_t i, float value) {
            store_word(payload, i * sizeof value, value);
          };
          if (!residual.has_feedback()) return visit(grad, random, store);
          const auto move = [&store](std::size_t i, float value, float& kept) {
            store(i, value);
            kept = 0.0F;
          };
          const auto stored = residual.renewal().subspan(range.begin, range.count);
          in_range = add_and_draw(grad, stored, random, move) && in_range;
        });
    if (!in_range) return tl::unexpected(non_finite(name(), args.grad));
    residual.renewed();
    return used;
  }

  /// What the payload carries leaves the residual in a second pass over the drawn elements, when
  /// all of the gradient was in range.
  Result<std::size_t> encode_coded(RandomKState& residual, const EncodeArgs& args,
                                   std::span<std::byte> out,
                                   std::span<std::size_t> shard_bytes) const {
    bool in_range = true;
    const std::size_t used = for_shards(
        residual, args, out, shard_bytes,
        [&](const ShardRange& range, kernels::RandomKey random, std::span<std::byte> payload) {
          const auto grad = args.grad.subspan(range.begin, range.count);
          const auto drawn = residual.drawn().first(kept_elements(spec_, range.count));
          if (residual.has_feedback()) {
            const auto note = [drawn](std::size_t i, float value, float&) { drawn[i] = value; };
            const auto stored = residual.renewal().subspan(range.begin, range.count);
            in_range = add_and_draw(grad, stored, random, note) && in_range;
          } else {
            visit(grad, random, [drawn](std::size_t i, float value) { drawn[i] = value; });
          }
          write_values(spec_.value, drawn, payload);
        });
    if (!in_range) return tl::unexpected(non_finite(name(), args.grad));
    if (residual.has_feedback()) {
      const auto renewed = residual.renewal().to;
      (void)for_shards(
          residual, args, out, shard_bytes,
          [&](const ShardRange& range, kernels::RandomKey random, std::span<std::byte> payload) {
            DrawnValues values(spec_.value, payload, kept_elements(spec_, range.count));
            visit(renewed.subspan(range.begin, range.count), random,
                  [&values](std::size_t, float& value) { value -= values.next(); });
          });
    }
    residual.renewed();
    return used;
  }

  Status do_decode(State& state, const DecodeArgs& args, std::span<float> dst) const override {
    const auto own = state_of<RandomKState>(name(), state);
    if (!own) return own.error();
    const std::size_t want = payload_bound(Shape::flat(dst.size()), 0);
    if (args.payload.size() != want) {
      return Status::error(Code::kCorruptPayload, name(), ": ", dst.size(), " elements come in ",
                           want, " B, got ", args.payload.size(), " B");
    }
    StateOptions origin = (*own)->options();
    origin.first_shard = 0;
    const kernels::RandomKey random = shard_key(origin, args.step, args.shard);
    if (has_coded_entries(spec_)) {
      DrawnValues values(spec_.value, args.payload, kept_elements(spec_, dst.size()));
      visit(dst, random, [&](std::size_t, float& to) { to += values.next() * args.weight; });
      if (!values.finite()) return not_finite();
      return {};
    }
    if (!kernels::values_finite(args.payload)) return not_finite();
    if (!spec_.unbiased) {
      visit(dst, random, [&args](std::size_t i, float& to) {
        to += load_word<float>(args.payload, i * sizeof(float)) * args.weight;
      });
      return {};
    }
    const std::uint64_t n = dst.size();
    const std::uint64_t kept = kept_elements(spec_, n);
    bool in_range = true;
    visit(dst, random, [&](std::size_t i, float& to) {
      const auto value = load_word<float>(args.payload, i * sizeof(float));
      const std::uint64_t width = (i + 1) * n / kept - i * n / kept;
      if (std::fabs(value) < kScaledLimit) {
        to += value * args.weight * static_cast<float>(width);
      } else {
        in_range = false;
      }
    });
    if (in_range) return {};
    return Status::error(Code::kCorruptPayload, name(), ": a value is not below ", kScaledLimit,
                         " in magnitude");
  }

  Status not_finite() const {
    return Status::error(Code::kCorruptPayload, name(), ": a value is not finite");
  }

  Spec spec_;
};

}  // namespace

std::unique_ptr<const Codec> make_randomk(const Spec& spec) {
  return std::make_unique<RandomKCodec>(spec);
}

}  // namespace gradpress::codec
