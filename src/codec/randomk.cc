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
  using ResidualState::ResidualState;
};

/// One element at random out of each of k equal strata, the same on all workers, so that values
/// alone travel and their sum over workers decodes to the sum. Payload: k f32 values.
class RandomKCodec final : public Sparsifier {
 public:
  explicit RandomKCodec(const Spec& spec)
      : Sparsifier(to_text(spec), traits_of(spec)), spec_(spec) {}

  /// Each element is sent with at least the probability it has in the widest stratum, ⌈n/k⌉ wide:
  /// that many of 2³² random words, rounded down, point at it.
  std::optional<double> contraction(const Shape& shape) const override {
    const std::uint64_t n = shape.elements();
    if (n == 0) return 1.0;
    const std::uint64_t k = kept_elements(spec_, n);
    const std::uint64_t widest = (n + k - 1) / k;
    const std::uint64_t least_words = (std::uint64_t{1} << 32) / widest;
    return static_cast<double>(least_words) * 0x1.0p-32;
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
    return std::make_unique<RandomKState>(options, feedback);
  }

  /// residual ← grad + residual; the drawn elements move from there to the payload.
  bool move_drawn(std::span<const float> grad, const kernels::Renewal& residual,
                  kernels::RandomKey random, std::span<std::byte> payload) const {
    const std::uint64_t kept = kept_elements(spec_, grad.size());
    if (kept == 0) return true;
    bool in_range = true;
    kernels::Strata strata(grad.size(), kept, random);
    std::uint64_t next = strata.next();
    std::size_t at = 0;
    for (std::size_t begin = 0; begin < grad.size(); begin += kBlock) {
      const std::size_t count = std::min(kBlock, grad.size() - begin);
      in_range = kernels::add_in_range(grad.subspan(begin, count), residual.subspan(begin, count),
                                       kGradientLimit) &&
                 in_range;
      while (next < begin + count) {
        // What went past the caches would have to come back: its summands are still there.
        store_word(payload, at,
                   residual.past_caches ? grad[next] + residual.from[next] : residual.to[next]);
        residual.to[next] = 0.0F;
        at += sizeof(float);
        next = at < payload.size() ? strata.next() : kMaxElements + 1;
      }
    }
    return in_range;
  }

  Result<std::size_t> do_encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                                std::span<std::size_t> shard_bytes) const override {
    const auto own = state_of<RandomKState>(name(), state);
    if (!own) return tl::unexpected(own.error());
    RandomKState& residual = **own;
    bool in_range = residual.has_feedback() ||
                    kernels::first_out_of_range(args.grad, kGradientLimit) == kernels::kAllInRange;
    if (!in_range) return tl::unexpected(non_finite(name(), args.grad));
    const auto for_shards = [&](auto&& body) {
      std::size_t used = 0;
      for (std::uint32_t index = 0; index < args.shards; ++index) {
        const ShardRange range = shard_range(args.grad.size(), args.shards, index);
        shard_bytes[index] = payload_bound(Shape::flat(range.count), 0);
        body(range, shard_key(residual.options(), args.step, index),
             out.subspan(used, shard_bytes[index]));
        used += shard_bytes[index];
      }
      return used;
    };
    const std::size_t used = for_shards(
        [&](const ShardRange& range, kernels::RandomKey random, std::span<std::byte> payload) {
          const auto grad = args.grad.subspan(range.begin, range.count);
          if (residual.has_feedback()) {
            in_range = move_drawn(grad, residual.renewal().subspan(range.begin, range.count),
                                  random, payload) &&
                       in_range;
          } else {
            visit(grad, random, [payload](std::size_t i, float value) {
              store_word(payload, i * sizeof value, value);
            });
          }
        });
    if (!in_range) return tl::unexpected(non_finite(name(), args.grad));
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
    if (!kernels::values_finite(args.payload)) {
      return Status::error(Code::kCorruptPayload, name(), ": a value is not finite");
    }
    StateOptions origin = (*own)->options();
    origin.first_shard = 0;
    visit(dst, shard_key(origin, args.step, args.shard), [&args](std::size_t i, float& to) {
      to += load_word<float>(args.payload, i * sizeof(float)) * args.weight;
    });
    return {};
  }

  Spec spec_;
};

}  // namespace

std::unique_ptr<const Codec> make_randomk(const Spec& spec) {
  return std::make_unique<RandomKCodec>(spec);
}

}  // namespace gradpress::codec
