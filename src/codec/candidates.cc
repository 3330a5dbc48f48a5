#include "codec/candidates.h"

#include <gradpress/codec.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/sparse.h"

namespace gradpress::codec {

namespace {

/// Elements are sampled by whole cache lines: what a miss brings is used.
constexpr std::uint64_t kLine = 16;

std::uint64_t capacity_of(const Candidates::Plan& plan) {
  // A cut must leave room for a block, and a sample's error should rarely need a cut.
  return std::min(plan.elements, 3 * plan.kept + 2 * kernels::kScanBlock);
}

/// The sum that the scan will form, of one element.
float added(std::span<const float> grad, std::span<const float> stored, std::size_t i) {
  const float g = std::fabs(grad[i]) < kGradientLimit ? grad[i] : 0.0F;
  return stored.empty() ? g : g + stored[i];
}

/// What share of the last chunk's k-th magnitude an element of the next must reach to be looked at.
constexpr float kGuess = 0.8F;

/// kernels::kth_largest by magnitude; faster for few values, which histograms are too large for.
kernels::Rank kth_of_few(std::span<const float> values, std::size_t k) {
  constexpr std::size_t kFew = 1024;
  if (values.size() > kFew) return kernels::kth_largest(values, kernels::kByMagnitude, k);
  std::array<std::uint32_t, kFew> room;
  const std::span<std::uint32_t> keys = std::span(room).first(values.size());
  std::ranges::transform(values, keys.begin(), kernels::kByMagnitude);
  const auto kth = keys.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::ranges::nth_element(keys, kth, std::ranges::greater());
  const auto above =
      std::count_if(keys.begin(), kth, [&](std::uint32_t key) { return key > *kth; });
  return {.key = *kth, .ties = k - static_cast<std::size_t>(above)};
}

}  // namespace

std::uint64_t default_sample(std::uint64_t elements) {
  constexpr std::uint64_t kWorthwhile = 2048;
  constexpr std::uint64_t kLeast = 1024;
  constexpr std::uint64_t kMost = 65536;
  return elements < kWorthwhile ? 0 : std::clamp(elements / 16, kLeast, kMost);
}

Candidates::Candidates(const Plan& plan)
    : index_(capacity_of(plan) + kernels::kScanSlack),
      value_(capacity_of(plan)),
      sample_(std::min(plan.sample_elems + kLine, plan.elements)) {}

std::uint32_t Candidates::sample(const Source& source) {
  sampled_rank_ = 0;
  const std::uint64_t all_lines = source.grad.size() / kLine;
  const std::uint64_t lines = std::min((source.sample_elems + kLine - 1) / kLine, all_lines);
  if (lines == 0) return lowest();
  kernels::Strata strata(all_lines, lines, source.random);
  // The other sign's elements take no part but count, as the zero whose key is 0.
  const auto nothing = std::bit_cast<float>(key_.flip);
  float* to = sample_.data();
  for (std::uint64_t line = 0; line < lines; ++line) {
    const std::size_t begin = strata.next() * kLine;
    for (std::size_t i = 0; i < kLine; ++i) {
      const float x = added(source.grad, source.stored.from, begin + i);
      *to++ = key_(x) >> 31 == 0 ? x : nothing;
    }
  }
  std::span<float> sampled(sample_.data(), lines * kLine);
  const auto size = static_cast<double>(sampled.size());
  // How many of the sample are among the k largest is close to Poisson's: four standard deviations
  // more are enough in all but one case of many thousands (of independent elements).
  const double expected =
      size * static_cast<double>(source.kept) / static_cast<double>(source.grad.size());
  const double rank = std::ceil(expected + 4.0 * std::sqrt(expected) + 4.0);
  if (rank >= size) return lowest();
  const std::uint32_t threshold =
      kernels::kth_largest(sampled, key_, static_cast<std::size_t>(rank)).key;
  if (source.sample_ratio > 0.0) {
    // Of what is above the threshold: few, and by the choice of rank more than enough.
    const auto above = std::remove_if(sampled.begin(), sampled.end(),
                                      [&](float x) { return key_(x) < threshold; });
    const auto wanted = static_cast<std::size_t>(std::ceil(size * source.sample_ratio));
    sampled_rank_ = kernels::kth_largest({sampled.begin(), above}, key_, wanted).key;
  }
  return std::max(threshold, lowest());
}

template <class Scan>
kernels::ScanTotals Candidates::stream(const Source& source, std::uint32_t threshold, Scan scan) {
  kernels::ScanTotals totals;
  const std::size_t elements = source.grad.size();
  count_ = 0;
  threshold_ = threshold;
  for (std::size_t begin = 0; begin < elements; begin += kernels::kScanBlock) {
    const std::size_t block = std::min(kernels::kScanBlock, elements - begin);
    if (count_ + block > value_.size()) {
      const kernels::Rank rank = kernels::kth_largest(value(), key_, source.kept);
      count_ = kernels::keep_ranked({index_.data(), count_}, {value_.data(), count_}, key_, rank);
      // What comes now has larger indices: equals of the k-th lose against it.
      threshold_ = rank.key + 1;
    }
    const kernels::ScanArgs args{.key = key_,
                                 .threshold = threshold_,
                                 .first_index = static_cast<std::uint32_t>(begin),
                                 .limit = kGradientLimit};
    count_ += scan(begin, block, args, index_.span().subspan(count_), value_.span().subspan(count_),
                   totals);
  }
  return totals;
}

kernels::ScanTotals Candidates::collect(const Source& source) {
  key_ = source.key;
  const std::uint32_t threshold = sample(source);
  const bool feedback = !source.stored.empty();
  const auto add = [&source](std::size_t begin, std::size_t count, const kernels::ScanArgs& args,
                             auto index, auto value, kernels::ScanTotals& totals) {
    return kernels::scan_add(source.grad.subspan(begin, count), source.stored.subspan(begin, count),
                             args, index, value, totals);
  };
  const std::span<const float> sums = feedback ? source.stored.to : source.grad;
  // Stored sums are finite, but nothing else limits them.
  const float limit = feedback ? std::numeric_limits<float>::infinity() : kGradientLimit;
  const auto read = [sums, limit](std::size_t begin, std::size_t count, kernels::ScanArgs args,
                                  auto index, auto value, kernels::ScanTotals& totals) {
    args.limit = limit;
    return kernels::scan(sums.subspan(begin, count), args, index, value, totals);
  };
  const kernels::ScanTotals totals =
      feedback ? stream(source, threshold, add) : stream(source, threshold, read);
  if (count_ < source.kept && threshold > lowest()) (void)stream(source, lowest(), read);
  return totals;
}

void Candidates::keep_from(std::uint32_t least) {
  count_ = kernels::keep_ranked({index_.data(), count_}, {value_.data(), count_}, key_,
                                {.key = least, .ties = count_});
}

void Candidates::keep_largest(std::size_t k) {
  if (count_ <= k) return;
  const kernels::Rank rank = kernels::kth_largest(value(), key_, k);
  count_ = kernels::keep_ranked({index_.data(), count_}, {value_.data(), count_}, key_, rank);
}

std::size_t Candidates::scan_chunk(const Source& source, std::size_t begin, std::size_t size,
                                   std::uint32_t threshold, kernels::ScanTotals& totals, bool add) {
  kernels::ScanArgs args{.key = key_,
                         .threshold = threshold,
                         .first_index = static_cast<std::uint32_t>(begin),
                         .limit = kGradientLimit};
  const std::span<std::uint32_t> index(index_.data() + count_, size + kernels::kScanSlack);
  const std::span<float> value(value_.data() + count_, size);
  const auto grad = source.grad.subspan(begin, size);
  if (source.stored.empty()) return kernels::scan(grad, args, index, value, totals);
  const auto stored = source.stored.subspan(begin, size);
  // Stored sums are finite, but nothing else limits them.
  if (!add) args.limit = std::numeric_limits<float>::infinity();
  return add ? kernels::scan_add(grad, stored, args, index, value, totals)
             : kernels::scan(stored.to, args, index, value, totals);
}

kernels::ScanTotals Candidates::collect_chunks(const Source& source, const Chunks& chunks) {
  kernels::ScanTotals totals;
  key_ = source.key;
  count_ = 0;
  threshold_ = 0;
  // Most chunks are alike: about twice as many as are kept pass half of the last chunk's k-th key.
  std::uint32_t guess = 0;
  for (std::size_t begin = 0; begin < source.grad.size(); begin += chunks.size) {
    const std::size_t size = std::min(chunks.size, source.grad.size() - begin);
    const std::size_t kept = (chunks.kept * size + chunks.size - 1) / chunks.size;
    std::size_t found = scan_chunk(source, begin, size, guess, totals, /*add=*/true);
    if (found < kept) {
      kernels::ScanTotals seen;
      found = scan_chunk(source, begin, size, 0, seen, /*add=*/false);
    }
    const std::span<std::uint32_t> index(index_.data() + count_, found);
    const std::span<float> value(value_.data() + count_, found);
    const kernels::Rank rank = kth_of_few(value, kept);
    count_ += kernels::keep_ranked(index, value, key_, rank);
    guess = std::bit_cast<std::uint32_t>(kGuess * std::bit_cast<float>(rank.key));
  }
  return totals;
}

}  // namespace gradpress::codec
