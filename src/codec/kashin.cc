#include <gradpress/codec.h>

#include <algorithm>
#include <cmath>

#include "codec/codecs.h"
#include "codec/dense.h"
#include "kernels/kashin.h"

namespace gradpress::codec {

namespace {

/// Kashin compression in an orthogonal frame: random signs and a Walsh-Hadamard transform spread
/// every block evenly over its coefficients, which are then rounded at random to 2^BITS levels.
/// Payload: per block of 1024 its largest coefficient as f32, then the codes.
class KashinCodec final : public DenseCodec {
 public:
  using DenseCodec::DenseCodec;

  /// Over the frame's signs the largest of P coefficients has a square of at most 2(ln 2P + 1)‖x‖²
  /// in expectation (P Gaussian-like tails), and never more than P‖x‖². Rounding to levels
  /// 2·largest / L apart has a variance of at most a quarter of their squared distance per
  /// coefficient, and the frame turns P coefficients' errors to 1/P of their sum. Blocks whose
  /// largest coefficient is below 2^-100 are sent as zeros and are beyond this promise.
  std::optional<double> variance(const Shape& shape) const override {
    const auto block = std::min<std::uint64_t>(kernels::kFrameElems, shape.elements());
    const auto length = static_cast<double>(kernels::frame_length(block));
    const double levels = (1U << spec().bits) - 1;
    const double square = std::min(length, 2.0 * (std::log(2.0 * length) + 1.0));
    return square / (levels * levels);
  }
  /// From the variance, where that is below 1.
  std::optional<double> contraction(const Shape& shape) const override {
    const double omega = *variance(shape);
    return omega <= 1.0 ? std::optional(1.0 - omega) : std::nullopt;
  }

 private:
  bool encode_shard(const kernels::FeedbackPass& pass, const ShardKeys& keys,
                    std::span<std::byte> payload) const override {
    return kernels::encode_frames(pass, {.frame = keys.shared, .rounding = keys.own}, spec().bits,
                                  payload);
  }
  Status decode_shard(std::span<const std::byte> payload, kernels::RandomKey shared, float weight,
                      std::span<float> dst) const override {
    if (kernels::add_frames(payload, shared, spec().bits, weight, dst)) return {};
    return Status::error(Code::kCorruptPayload, name(),
                         ": a block's largest coefficient is not from 0 to below 2^100");
  }
};

}  // namespace

std::unique_ptr<const Codec> make_kashin(const Spec& spec) {
  return std::make_unique<KashinCodec>(spec);
}

}  // namespace gradpress::codec
