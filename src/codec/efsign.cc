#include <gradpress/codec.h>

#include "codec/codecs.h"
#include "codec/levels.h"
#include "codec/wire.h"

namespace gradpress::codec {

namespace {

/// EF-signSGD: signs survive, sizes collapse to their mean; the residual carries the difference.
/// Payload: f32 mean magnitude, then ⌈n/32⌉ words of sign bits.
class EfSignCodec final : public LevelCodec {
 public:
  explicit EfSignCodec(const Spec& spec) : LevelCodec(spec, 1) {}

  /// ‖x − mean|x|·sign x‖² = ‖x‖² − ‖x‖₁²/n, and ‖x‖₁ ≥ ‖x‖: worst for a single spike.
  std::optional<double> contraction(const Shape& shape) const override {
    const std::uint64_t n = shape.elements();
    return n == 0 ? 1.0 : 1.0 / static_cast<double>(n);
  }

 private:
  kernels::SignLevels levels(const kernels::SignSums& sums, std::uint64_t elements) const override {
    if (elements == 0) return {};
    const auto mean =
        static_cast<float>((sums.positive - sums.negative) / static_cast<double>(elements));
    return {.positive = mean, .negative = -mean};
  }
  void write_header(kernels::SignLevels levels, std::span<std::byte> header) const override {
    store_word(header, 0, levels.positive);
  }
  kernels::SignLevels read_header(std::span<const std::byte> header) const override {
    const auto mean = load_word<float>(header, 0);
    return {.positive = mean, .negative = -mean};
  }
};

}  // namespace

std::unique_ptr<const Codec> make_efsign(const Spec& spec) {
  return std::make_unique<EfSignCodec>(spec);
}

}  // namespace gradpress::codec
