#include "kernels/cast.h"

#include <gradpress/codec.h>

#include "codec/codecs.h"
#include "codec/dense.h"

namespace gradpress::codec {

namespace {

/// Half the bytes: every element rounded to 16 bits. Payload: n 16-bit floats, which an all-reduce
/// that knows the type may sum. Rounding is deterministic, hence biased.
class CastCodec final : public DenseCodec {
 public:
  explicit CastCodec(const Spec& spec) : DenseCodec(spec) {}

  /// fp16 carries nothing of elements up to 2^-25, and 65504 of however large ones: never worse
  /// than nothing is all that holds for every x. (From 2^-14 to 65504 its α is 1 − 2^-22.)
  /// bf16 has float's range and 8 significant bits: |error| ≤ 2^-8 |x|. Elements below 2^-126,
  /// subnormal as floats already, are beyond this promise.
  std::optional<double> contraction(const Shape& /*shape*/) const override {
    return spec().kind == Kind::kFp16 ? 0.0 : 1.0 - 0x1.0p-16;
  }

 private:
  bool encode_shard(const kernels::FeedbackPass& pass, const ShardKeys& /*keys*/,
                    std::span<std::byte> payload) const override {
    return spec().kind == Kind::kFp16 ? kernels::encode_fp16(pass, payload)
                                      : kernels::encode_bf16(pass, payload);
  }
  Status decode_shard(std::span<const std::byte> payload, kernels::RandomKey /*shared*/,
                      float weight, std::span<float> dst) const override {
    const bool finite = spec().kind == Kind::kFp16 ? kernels::add_fp16(payload, weight, dst)
                                                   : kernels::add_bf16(payload, weight, dst);
    if (finite) return {};
    return Status::error(Code::kCorruptPayload, name(), ": the payload of ", dst.size(),
                         " elements holds NaN or infinity, wanted finite values; a sum of ",
                         "payloads may have left the type's range");
  }
};

}  // namespace

std::unique_ptr<const Codec> make_cast(const Spec& spec) {
  return std::make_unique<CastCodec>(spec);
}

}  // namespace gradpress::codec
