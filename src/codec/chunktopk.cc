#include "codec/codecs.h"
#include "codec/sparse.h"

namespace gradpress::codec {

namespace {

/// Of every chunk of a shard exactly those elements that come first by (larger magnitude, then
/// smaller index). Chunks begin anew at each shard. Payload: k u32 indices, k f32 values; or coded
/// entries.
class ChunkTopKCodec final : public SizeCodec {
 public:
  explicit ChunkTopKCodec(const Spec& spec) : SizeCodec(spec) {}

  /// Of each chunk at least the share kept/chunk of its squares is sent, and of a last one, which
  /// is rounded up, no less; the same share of its magnitudes' sum.
  std::optional<double> contraction(const Shape& shape) const override {
    const std::uint64_t n = shape.elements();
    if (n == 0) return 1.0;
    const double share = static_cast<double>(spec().chunk_kept) / spec().chunk;
    // The sum of all magnitudes that are sent, squared, by their number.
    if (spec().value == ValueCode::kTwoBits) {
      return share * share / static_cast<double>(kept_elements(spec(), n));
    }
    return contraction_of(share * static_cast<double>(n), n);
  }

 private:
  kernels::ScanTotals collect(SparseState& state, const Candidates::Source& source) const override {
    return state.candidates().collect_chunks(source,
                                             {.size = spec().chunk, .kept = spec().chunk_kept});
  }

  void choose(SparseState& /*state*/, const Shard& /*shard*/,
              const kernels::ScanTotals& /*totals*/) const override {}
};

}  // namespace

std::unique_ptr<const Codec> make_chunktopk(const Spec& spec) {
  return std::make_unique<ChunkTopKCodec>(spec);
}

}  // namespace gradpress::codec
