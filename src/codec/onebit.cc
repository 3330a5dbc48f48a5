#include <gradpress/codec.h>

#include "codec/codecs.h"
#include "codec/levels.h"
#include "codec/wire.h"

namespace gradpress::codec {

namespace {

/// 1-bit SGD: the elements of each sign collapse to their own mean.
/// Payload: f32 mean of the positive side, f32 mean of the negative side, then ⌈n/32⌉ words of sign
/// bits.
class OneBitCodec final : public LevelCodec {
 public:
  explicit OneBitCodec(const Spec& spec) : LevelCodec(spec, 2) {}

  /// Keeps S₊²/n₊ + S₋²/n₋ ≥ ‖x‖₁²/n of ‖x‖², as efsign does at least.
  std::optional<double> contraction(const Shape& shape) const override {
    const std::uint64_t n = shape.elements();
    return n == 0 ? 1.0 : 1.0 / static_cast<double>(n);
  }

 private:
  kernels::SignLevels levels(const kernels::SignSums& sums, std::uint64_t elements) const override {
    // A side without members has no mean; nothing will be decoded to it.
    const std::uint64_t positives = elements - sums.negatives;
    const auto mean = [](double sum, std::uint64_t count) {
      return count == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(count));
    };
    return {.positive = mean(sums.positive, positives),
            .negative = mean(sums.negative, sums.negatives)};
  }
  void write_header(kernels::SignLevels levels, std::span<std::byte> header) const override {
    store_word(header, 0, levels.positive);
    store_word(header, sizeof(float), levels.negative);
  }
  kernels::SignLevels read_header(std::span<const std::byte> header) const override {
    return {.positive = load_word<float>(header, 0),
            .negative = load_word<float>(header, sizeof(float))};
  }
};

}  // namespace

std::unique_ptr<const Codec> make_onebit(const Spec& spec) {
  return std::make_unique<OneBitCodec>(spec);
}

}  // namespace gradpress::codec
