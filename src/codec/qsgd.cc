#include <gradpress/codec.h>

#include <algorithm>
#include <cmath>

#include "codec/codecs.h"
#include "codec/dense.h"
#include "kernels/quantise.h"

namespace gradpress::codec {

namespace {

/// QSGD: an element becomes one of the two neighbouring levels of its block's norm, at random so
/// that the expectation is the element. Payload: ⌈n/block⌉ f32 norms, then n codes of BITS bits.
class QsgdCodec final : public DenseCodec {
 public:
  explicit QsgdCodec(const Spec& spec)
      : DenseCodec(spec), levels_(static_cast<float>((1U << (spec.bits - 1)) - 1)) {}

  /// Alistarh et al., 2017, for vectors of a block's length. Blocks of a norm below 2^-100 are sent
  /// as zeros and are beyond this promise.
  std::optional<double> variance(const Shape& shape) const override {
    const auto block = static_cast<double>(std::min<std::uint64_t>(spec().block, shape.elements()));
    const double s = levels_;
    return std::min(block / (s * s), std::sqrt(block) / s);
  }
  /// From the variance, where that is below 1.
  std::optional<double> contraction(const Shape& shape) const override {
    const double omega = *variance(shape);
    return omega <= 1.0 ? std::optional(1.0 - omega) : std::nullopt;
  }

 private:
  std::size_t scale_bytes(std::size_t elements) const {
    return (elements + spec().block - 1) / spec().block * sizeof(float);
  }
  bool encode_shard(const kernels::FeedbackPass& pass, const ShardKeys& keys,
                    std::span<std::byte> payload) const override {
    const std::size_t norms = scale_bytes(pass.g.size());
    return kernels::encode_qsgd(
        pass, keys.own, spec().bits,
        {.scales = payload.first(norms), .codes = payload.subspan(norms), .block = spec().block});
  }
  Status decode_shard(std::span<const std::byte> payload, kernels::RandomKey /*shared*/,
                      float weight, std::span<float> dst) const override {
    const std::size_t norms = scale_bytes(dst.size());
    const kernels::BlockCodes codes{.scales = payload.first(norms),
                                    .codes = payload.subspan(norms),
                                    .block = spec().block,
                                    .bits = spec().bits,
                                    .scale_divisor = levels_};
    if (kernels::add_block_codes(codes, weight, dst)) return {};
    return Status::error(Code::kCorruptPayload, name(),
                         ": a block's norm gives infinite values or NaN, wanted a finite one");
  }

  float levels_;  // above zero: 2^(BITS−1) − 1
};

}  // namespace

std::unique_ptr<const Codec> make_qsgd(const Spec& spec) {
  return std::make_unique<QsgdCodec>(spec);
}

}  // namespace gradpress::codec
