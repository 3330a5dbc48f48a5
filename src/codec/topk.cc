#include "codec/codecs.h"
#include "codec/sparse.h"

namespace gradpress::codec {

namespace {

/// Exactly the k elements that come first by (larger magnitude, then smaller index).
/// Payload: k u32 indices, k f32 values; or coded entries.
class TopKCodec final : public SizeCodec {
 public:
  explicit TopKCodec(const Spec& spec) : SizeCodec(spec) {}

  /// The k largest of n squares are at least k/n of their sum.
  std::optional<double> contraction(const Shape& shape) const override {
    const std::uint64_t n = shape.elements();
    if (n == 0) return 1.0;
    return contraction_of(static_cast<double>(kept_elements(spec(), n)), n);
  }

 private:
  void choose(SparseState& state, const Shard& shard,
              const kernels::ScanTotals& /*totals*/) const override {
    state.candidates().keep_largest(shard.kept);
  }
};

}  // namespace

std::unique_ptr<const Codec> make_topk(const Spec& spec) {
  return std::make_unique<TopKCodec>(spec);
}

}  // namespace gradpress::codec
