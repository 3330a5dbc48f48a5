#include <gradpress/codec.h>

#include <algorithm>

#include "codec/codecs.h"
#include "codec/dense.h"
#include "kernels/quantise.h"

namespace gradpress::codec {

namespace {

/// A byte per element: the nearest of 255 levels up to its block's largest magnitude.
/// Payload: ⌈n/block⌉ f32 scales, then n int8 codes.
class Int8Codec final : public DenseCodec {
 public:
  explicit Int8Codec(const Spec& spec) : DenseCodec(spec) {}

  /// In a block of B elements with the largest magnitude m, every element but the largest errs by
  /// at most min(|x|, m/254). So ‖error‖² =: E ≤ (B − 1)·m²/254², ‖x‖² ≥ m² + E, and their ratio is
  /// at most q/(1 + q) with q = (B − 1)/254². The factor covers the products' rounding. Blocks with
  /// m below 2^-100 are sent as zeros and are beyond this promise.
  std::optional<double> contraction(const Shape& shape) const override {
    const std::uint64_t block = std::min<std::uint64_t>(spec().block, shape.elements());
    const double others = block == 0 ? 0.0 : static_cast<double>(block - 1);
    const double q = kRounding * others / (254.0 * 254.0) + kRoundingOfLargest;
    return 1.0 / (1.0 + q);
  }

 private:
  // x · (127/m) is off by at most 127 · 2^-23, beside the half that rounding to a code costs; and
  // code · (m/127) by 127 · 2^-23 again, which is all that the largest element errs by.
  static constexpr double kRounding = 1.001;
  static constexpr double kRoundingOfLargest = 0x1.0p-44;

  std::size_t scale_bytes(std::size_t elements) const {
    return (elements + spec().block - 1) / spec().block * sizeof(float);
  }
  bool encode_shard(const kernels::FeedbackPass& pass, const ShardKeys& /*keys*/,
                    std::span<std::byte> payload) const override {
    const std::size_t scales = scale_bytes(pass.g.size());
    return kernels::encode_int8(
        pass,
        {.scales = payload.first(scales), .codes = payload.subspan(scales), .block = spec().block});
  }
  Status decode_shard(std::span<const std::byte> payload, kernels::RandomKey /*shared*/,
                      float weight, std::span<float> dst) const override {
    const std::size_t scales = scale_bytes(dst.size());
    const kernels::BlockCodes codes{.scales = payload.first(scales),
                                    .codes = payload.subspan(scales),
                                    .block = spec().block,
                                    .bits = 8,
                                    .scale_divisor = 1.0F};
    if (kernels::add_block_codes(codes, weight, dst)) return {};
    return Status::error(Code::kCorruptPayload, name(),
                         ": a block's scale gives infinite values or NaN, wanted a finite one");
  }
};

}  // namespace

std::unique_ptr<const Codec> make_int8(const Spec& spec) {
  return std::make_unique<Int8Codec>(spec);
}

}  // namespace gradpress::codec
