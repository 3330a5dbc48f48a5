#include <gradpress/codec.h>

#include "codec/codecs.h"
#include "codec/dense.h"
#include "kernels/quantise.h"

namespace gradpress::codec {

namespace {

/// Natural compression: an element becomes one of the two neighbouring powers of two, at random so
/// that the expectation is the element. Payload: n bytes of sign bit and 7-bit exponent code.
class NaturalCodec final : public DenseCodec {
 public:
  explicit NaturalCodec(const Spec& spec) : DenseCodec(spec) {}

  /// Horváth et al., 2019, for elements of 2^-109 to 2^17 in magnitude (and zeros); larger ones
  /// saturate and smaller ones may vanish, beyond this promise.
  std::optional<double> variance(const Shape& /*shape*/) const override { return 0.125; }
  /// Of every x: what saturates or vanishes is never worse than nothing.
  std::optional<double> contraction(const Shape& /*shape*/) const override { return 0.0; }

 private:
  bool encode_shard(const kernels::FeedbackPass& pass, const ShardKeys& keys,
                    std::span<std::byte> payload) const override {
    return kernels::encode_natural(pass, keys.own, payload);
  }
  Status decode_shard(std::span<const std::byte> payload, kernels::RandomKey /*shared*/,
                      float weight, std::span<float> dst) const override {
    kernels::add_natural(payload, weight, dst);
    return {};
  }
};

}  // namespace

std::unique_ptr<const Codec> make_natural(const Spec& spec) {
  return std::make_unique<NaturalCodec>(spec);
}

}  // namespace gradpress::codec
