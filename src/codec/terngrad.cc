#include <gradpress/codec.h>

#include <algorithm>
#include <cmath>

#include "codec/codecs.h"
#include "codec/dense.h"
#include "codec/wire.h"
#include "kernels/ternary.h"

namespace gradpress::codec {

namespace {

/// TernGrad: an element becomes −scale, 0 or +scale, at random so that the expectation is the
/// element, cut at `clip` standard deviations. Payload: f32 scale, then two bits per element.
/// Encode passes twice over memory: the scale must be known before the first element is sent.
class TernGradCodec final : public DenseCodec {
 public:
  /// What clipping cuts off is lost on average too.
  explicit TernGradCodec(const Spec& spec) : DenseCodec(spec) {}

  /// Without clipping E‖error‖² = max|x| · ‖x‖₁ − ‖x‖² ≤ √n ‖x‖².
  std::optional<double> variance(const Shape& shape) const override {
    if (traits().biased) return std::nullopt;
    return std::sqrt(static_cast<double>(shape.elements()));
  }
  /// The noise can exceed the signal up to √n times.
  std::optional<double> contraction(const Shape& /*shape*/) const override { return std::nullopt; }

 private:
  bool encode_shard(const kernels::FeedbackPass& pass, const ShardKeys& keys,
                    std::span<std::byte> payload) const override {
    const kernels::Spread spread = kernels::measure_spread(pass);
    const auto clip = static_cast<float>(spec().clip_sigmas * spread.sigma);
    const float scale = clip > 0.0F ? std::min(spread.peak, clip) : spread.peak;
    store_word(payload, 0, scale);
    kernels::encode_ternary(pass, keys.own, scale, payload.subspan(sizeof scale));
    return spread.in_range;
  }
  Status decode_shard(std::span<const std::byte> payload, kernels::RandomKey /*shared*/,
                      float weight, std::span<float> dst) const override {
    const auto scale = load_word<float>(payload, 0);
    if (!std::isfinite(scale)) {
      return Status::error(Code::kCorruptPayload, name(), ": the scale is ", scale,
                           ", wanted a finite value");
    }
    kernels::add_ternary(payload.subspan(sizeof scale), scale, weight, dst);
    return {};
  }
};

}  // namespace

std::unique_ptr<const Codec> make_terngrad(const Spec& spec) {
  return std::make_unique<TernGradCodec>(spec);
}

}  // namespace gradpress::codec
