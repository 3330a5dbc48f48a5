#include <gradpress/codec.h>

#include "codec/codecs.h"
#include "codec/levels.h"

namespace gradpress::codec {

namespace {

/// signSGD with majority vote: every worker sends its signs, the result is the sign of their sum (a
/// tie is +1). Payload: ⌈n/32⌉ words of sign bits. Stateless: a vote has no residual.
class SignCodec final : public LevelCodec {
 public:
  explicit SignCodec(const Spec& spec) : LevelCodec(spec, 0) {}

  std::optional<double> contraction(const Shape& /*shape*/) const override { return std::nullopt; }

 private:
  kernels::SignLevels levels(const kernels::SignSums& /*sums*/,
                             std::uint64_t /*elements*/) const override {
    return kOneEach;
  }
  void write_header(kernels::SignLevels /*levels*/,
                    std::span<std::byte> /*header*/) const override {}
  kernels::SignLevels read_header(std::span<const std::byte> /*header*/) const override {
    return kOneEach;
  }

  static constexpr kernels::SignLevels kOneEach{.positive = 1.0F, .negative = -1.0F};
};

}  // namespace

std::unique_ptr<const Codec> make_sign(const Spec& spec) {
  return std::make_unique<SignCodec>(spec);
}

}  // namespace gradpress::codec
