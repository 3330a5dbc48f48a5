#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/codecs.h"
#include "codec/sparse.h"

namespace gradpress::codec {

namespace {

/// Fewer than this share of k is too few.
constexpr double kLeastShare = 0.8;
constexpr unsigned kRounds = 10;

/// Deep Gradient Compression's selection: a threshold from a sample, lowered while it lets too few
/// elements pass; what is too many is cut to k by magnitude. Where ten rounds are not enough, the k
/// largest are sent. Payload: c u32 indices, c f32 values, 0.8·k ≤ c ≤ k.
///
/// The sample lies in whole cache lines, one at random in each of as many equal parts of the
/// tensor.
class DgcCodec final : public SizeCodec {
 public:
  explicit DgcCodec(const Spec& spec) : SizeCodec(spec) {}

  /// What is sent is always the c largest, and c is at least 0.8·k and at least 1.
  std::optional<double> contraction(const Shape& shape) const override {
    const std::uint64_t n = shape.elements();
    if (n == 0) return 1.0;
    return contraction_of(std::max(1.0, std::ceil(least(kept_elements(spec(), n)))), n);
  }

 private:
  static double least(std::uint64_t kept) { return kLeastShare * static_cast<double>(kept); }

  /// 0 where the sample would be the whole tensor: its threshold is the k-th largest.
  std::uint64_t sample_elems(std::uint64_t elements) const {
    const double share = std::ceil(spec().sample * static_cast<double>(elements));
    const double wanted = std::max(share, std::ceil(2.0 / spec().ratio));
    return wanted >= static_cast<double>(elements) ? 0 : static_cast<std::uint64_t>(wanted);
  }

  Wanted wanted(const SparseState& /*state*/, const Shard& shard) const override {
    return {.key = kernels::kByMagnitude,
            .sample_elems = sample_elems(shard.elements),
            .sample_ratio = spec().ratio};
  }

  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override {
    // A shard that 2/ratio makes sample more than its tensor would still samples less than all.
    const auto n = static_cast<double>(options.shape.elements());
    const double most =
        std::min(n, std::max(std::ceil(spec().sample * n), 2.0 / spec().ratio + 1.0));
    return std::make_unique<SparseState>(
        options, feedback,
        SparseState::Needs{.spec = spec(), .sample_elems = static_cast<std::uint64_t>(most)});
  }

  void choose(SparseState& state, const Shard& shard,
              const kernels::ScanTotals& /*totals*/) const override {
    Candidates& candidates = state.candidates();
    const auto kept = static_cast<std::size_t>(shard.kept);
    std::uint32_t threshold = candidates.sampled_rank();
    for (unsigned round = 0; round <= kRounds; ++round) {
      // Below, more pass than are candidates, and those are k or more: the k largest of them it is.
      if (threshold < candidates.complete_from()) break;
      const std::size_t count = candidates.count_from(threshold);
      if (count >= kept) break;
      if (count > 0 && static_cast<double>(count) >= least(shard.kept)) {
        candidates.keep_from(threshold);
        return;
      }
      threshold = std::bit_cast<std::uint32_t>(std::bit_cast<float>(threshold) *
                                               static_cast<float>(kLeastShare));
    }
    candidates.keep_largest(kept);
  }
};

}  // namespace

std::unique_ptr<const Codec> make_dgc(const Spec& spec) { return std::make_unique<DgcCodec>(spec); }

}  // namespace gradpress::codec
