// Streaming selection in bounded memory: the largest elements of gradient + residual, exactly, out
// of one pass over memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/buffer.h"
#include "kernels/feedback.h"
#include "kernels/random.h"
#include "kernels/select.h"

namespace gradpress::codec {

/// The elements that may be among the k largest, gathered while gradient and residual are added.
///
/// A threshold from a sample of the data keeps most elements out. Where more pass than there is
/// room for, the gathered ones are cut to their k largest and the threshold rises above the k-th;
/// where fewer than k pass, a second, reading pass starts from no threshold at all. So the k
/// largest, by (larger key, then smaller index), are always among the candidates, whatever the
/// data; the sample only decides how fast.
class Candidates {
 public:
  struct Plan {
    std::uint64_t elements = 0;      ///< of the largest shard there will be
    std::uint64_t kept = 0;          ///< the largest k
    std::uint64_t sample_elems = 0;  ///< the most a Source will ask for
  };
  /// Allocates all that later calls need: 8 bytes for each of about 3k elements and the sample.
  explicit Candidates(const Plan& plan);

  struct Source {
    std::span<const float> grad;
    kernels::Renewal stored;  ///< the residual, as long as grad; empty without feedback
    kernels::KeyMap key = {};
    std::uint64_t kept = 0;          ///< k
    std::uint64_t sample_elems = 0;  ///< 0: the threshold starts at nothing
    double sample_ratio = 0.0;  ///< share of the sample that sampled_rank() is about; k/n at most
    kernels::RandomKey random = {};  ///< where the sample lies
  };
  /// stored ← grad + stored, and the candidates of the result. Elements of grad out of range count
  /// as zero and are reported in the totals.
  ///
  /// Leaves at least k candidates, or all elements with keys worth taking if they are fewer.
  kernels::ScanTotals collect(const Source& source);

  /// stored ← grad + stored, and the `kept` first of every chunk of `size` elements by (larger key,
  /// then smaller index); of a last one of m elements ⌈kept · m / size⌉. Elements of grad out of
  /// range as in collect(). Requires: size <= kScanBlock; by magnitude.
  struct Chunks {
    std::size_t size = 0;
    std::size_t kept = 0;
  };
  kernels::ScanTotals collect_chunks(const Source& source, const Chunks& chunks);

  /// Key bits from which on no element is missing among the candidates.
  std::uint32_t complete_from() const { return threshold_; }
  /// The key bits at the top sample_ratio of the sample; 0 without a sample, or with one too small
  /// to tell.
  std::uint32_t sampled_rank() const { return sampled_rank_; }

  std::size_t size() const { return count_; }
  std::span<const std::uint32_t> index() const { return {index_.data(), count_}; }
  std::span<const float> value() const { return {value_.data(), count_}; }

  std::size_t count_from(std::uint32_t least) const {
    return kernels::count_from(value(), key_, least);
  }
  /// Drops those with keys below `least`.
  void keep_from(std::uint32_t least);
  /// Cuts to the k first by (larger key, then smaller index); no effect on k or fewer.
  void keep_largest(std::size_t k);

 private:
  /// The threshold that about k elements, and hardly ever fewer, reach.
  std::uint32_t sample(const Source& source);
  template <class Scan>
  kernels::ScanTotals stream(const Source& source, std::uint32_t threshold, Scan scan);
  /// Those of one chunk, behind the candidates there are; returns how many.
  std::size_t scan_chunk(const Source& source, std::size_t begin, std::size_t size,
                         std::uint32_t threshold, kernels::ScanTotals& totals, bool add);
  /// Keys of zero are worth taking by magnitude (k entries always), but have no sign to select by.
  std::uint32_t lowest() const { return key_.mask == kernels::kByMagnitude.mask ? 0 : 1; }

  Buffer<std::uint32_t> index_;
  Buffer<float> value_;
  Buffer<float> sample_;
  kernels::KeyMap key_;
  std::size_t count_ = 0;
  std::uint32_t threshold_ = 0;
  std::uint32_t sampled_rank_ = 0;
};

/// How many elements to look at for a threshold out of `elements`, when only speed depends on it.
std::uint64_t default_sample(std::uint64_t elements);

}  // namespace gradpress::codec
