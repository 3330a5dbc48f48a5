#include "codec/lowrank.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "codec/wire.h"
#include "kernels/panels.h"
#include "kernels/random.h"
#include "kernels/vector.h"

namespace gradpress::codec {

LowRankState::LowRankState(const StateOptions& options, bool feedback, std::size_t rank)
    : ResidualState(options, feedback), rank_(rank) {
  if (is_dense()) return;
  size_ = {.rows = static_cast<std::size_t>(options.shape.rows()),
           .cols = static_cast<std::size_t>(options.shape.cols())};
  const auto make = [this] {
    return Factors{.left = Buffer<float>(left_floats()),
                   .panels = Buffer<float>(kernels::panel_floats(size_.cols, rank_))};
  };
  work_ = make();
  for (Sent& version : sent_) {
    if (feedback) version.factors = make();
  }
  factor_ = Buffer<float>(std::max(left_floats(), right_floats()));
  floats_ = Buffer<float>(kernels::project_scratch_floats(rank_));
  sums_ = Buffer<double>(kernels::project_scratch_doubles(size_, rank_));
}

kernels::ThinProduct LowRankState::sent_product() const {
  const Sent& last = sent_[now()];
  if (!last.is_there) return {};
  return {.left = last.factors.left.data(),
          .right_panels = last.factors.panels.data(),
          .rank = rank_,
          .scale = last.scale};
}

kernels::ProjectPass LowRankState::pass(std::span<const float> grad) {
  kernels::Renewal x = renewal();
  x.past_caches = x.past_caches && !reads_again();
  return {
      .size = size_, .grad = grad, .stored = x, .sent = sent_product(), .limit = kGradientLimit};
}

bool LowRankState::project_rows(std::span<const float> grad) {
  const bool in_range = kernels::project_rows(pass(grad), panels(), rank_, scratch(), left());
  if (in_range) formed();
  return in_range;
}

bool LowRankState::project_cols(std::span<const float> grad, std::span<const float> left) {
  const bool in_range = kernels::project_cols(pass(grad), left, rank_, scratch(), panels());
  if (in_range) formed();
  return in_range;
}

void LowRankState::formed() {
  renewed();
  clear_correction();
}

bool LowRankState::project_kept_cols(std::span<const float> grad) {
  kernels::ProjectPass kept{
      .size = size_, .grad = grad, .stored = {}, .sent = {}, .limit = kGradientLimit};
  if (has_feedback()) {
    // X was checked when it was formed, and may well be larger than one gradient may be.
    kept.grad = stored();
    kept.limit = std::numeric_limits<float>::infinity();
  }
  return kernels::project_cols(kept, left(), rank_, scratch(), panels());
}

void LowRankState::sent() {
  if (!has_feedback()) return;
  Sent& last = sent_[now()];
  std::swap(last.factors, work_);
  last.is_there = true;
  last.scale = 1.0F;
}

void LowRankState::add_product(std::span<const float> left, float weight, std::span<float> dst) {
  const kernels::ThinProduct product{
      .left = left.data(), .right_panels = panels().data(), .rank = rank_, .scale = -weight};
  kernels::subtract_product(product, size_, 0, dst);
}

void LowRankState::set_product(std::span<const float> left, float weight, std::span<float> dst) {
  // Cleared piece by piece, so that what is added to still lies in the cache.
  constexpr std::size_t kPieceFloats = std::size_t{32} << 10;
  const std::size_t tiles =
      kPieceFloats / std::max<std::size_t>(1, size_.cols * kernels::kMostTileRows);
  const std::size_t piece = std::max<std::size_t>(1, tiles) * kernels::kMostTileRows * size_.cols;
  const kernels::ThinProduct product{
      .left = left.data(), .right_panels = panels().data(), .rank = rank_, .scale = -weight};
  for (std::size_t begin = 0; begin < dst.size(); begin += piece) {
    const auto part = dst.subspan(begin, std::min(piece, dst.size() - begin));
    std::ranges::fill(part, 0.0F);
    kernels::subtract_product(product, size_, begin, part);
  }
}

void LowRankState::correct(std::uint64_t begin, std::span<float> values) const {
  kernels::subtract_product(sent_product(), size_, static_cast<std::size_t>(begin), values);
}

void fill_first_factor(const StateOptions& options, std::span<float> factor) {
  constexpr std::uint32_t kTerms = 12;
  const kernels::RandomKey key = kernels::random_key(
      {.seed = options.seed, .tensor = options.tensor, .step = 0, .site = options.site});
  std::uint32_t index = 0;
  for (float& element : factor) {
    std::uint32_t sum = 0;
    for (std::uint32_t t = 0; t < kTerms; ++t) sum += kernels::random_word(key, index++) >> 8;
    element = static_cast<float>(static_cast<double>(sum) * 0x1.0p-24 - 6.0);
  }
}

Status read_factor(const std::string& codec, std::span<const std::byte> payload,
                   std::span<float> factor) {
  if (payload.size() != factor.size_bytes()) {
    return Status::error(Code::kCorruptPayload, codec, ": wanted a payload of ", factor.size(),
                         " floats (", factor.size_bytes(), " B) in this step, got ", payload.size(),
                         " B");
  }
  if (!payload.empty()) std::memcpy(factor.data(), payload.data(), payload.size());
  const std::size_t at = kernels::first_out_of_range(factor, kFactorLimit);
  if (at == kernels::kAllInRange) return {};
  return Status::error(Code::kCorruptPayload, codec, ": element ", at, " of a factor is ",
                       factor[at], ", wanted a finite value below ", kFactorLimit);
}

Result<std::size_t> encode_dense(const std::string& codec, ResidualState& state,
                                 std::span<const float> grad, std::span<std::byte> out) {
  if (kernels::first_out_of_range(grad, kGradientLimit) != kernels::kAllInRange) {
    return tl::unexpected(non_finite(codec, grad));
  }
  if (grad.empty()) return 0;
  std::span<const float> x = grad;
  const kernels::Renewal residual = state.renewal();
  if (state.has_feedback()) {
    std::ranges::copy(residual.from, residual.to.begin());
    kernels::add(residual.to, grad);
    x = residual.to;
  }
  std::memcpy(out.data(), x.data(), x.size_bytes());
  std::ranges::fill(residual.to, 0.0F);
  state.renewed();
  return x.size_bytes();
}

Status add_dense(const std::string& codec, std::span<const std::byte> payload, float weight,
                 std::span<float> dst) {
  if (payload.size() != dst.size_bytes()) {
    return Status::error(Code::kCorruptPayload, codec, ": ", dst.size(), " elements come in ",
                         dst.size_bytes(), " B, got ", payload.size(), " B");
  }
  // Checked through a small window: the payload may lie at any alignment.
  std::array<float, 4096> window;
  for (std::size_t begin = 0; begin < dst.size(); begin += window.size()) {
    const auto part = std::span(window).first(std::min(window.size(), dst.size() - begin));
    const Status status =
        read_factor(codec, payload.subspan(begin * sizeof(float), part.size_bytes()), part);
    if (!status.is_ok()) return status;
  }
  kernels::add_weighted(payload, weight, dst);
  return {};
}

Status check_destination(const std::string& codec, const State& state, std::span<float> dst) {
  const std::uint64_t elements = state.shape().elements();
  if (dst.size() == elements) return {};
  return Status::error(Code::kInvalidArgument, codec, ": a destination of ", dst.size(),
                       " elements was given to a state of shape ", state.shape().to_string(), " (",
                       elements, " elements)");
}

std::vector<std::byte> save_factor(const FactorRecord& record, std::span<const float> factor) {
  std::vector<std::byte> bytes(sizeof record + factor.size_bytes());
  store_word(bytes, 0, record);
  std::memcpy(bytes.data() + sizeof record, factor.data(), factor.size_bytes());
  return bytes;
}

Result<FactorRecord> load_record(const FactorRecord& want, std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(FactorRecord)) {
    return fail(Code::kCorruptPayload, "low-rank extras begin with ", sizeof(FactorRecord),
                " B, got ", bytes.size(), " B");
  }
  const auto record = load_word<FactorRecord>(bytes, 0);
  if (record.mark != want.mark || record.rank != want.rank) {
    return fail(Code::kCorruptPayload, "low-rank extras of mark ", record.mark, " and rank ",
                record.rank, ", wanted mark ", want.mark, " and rank ", want.rank,
                ": were they saved by another codec or shape?");
  }
  return record;
}

}  // namespace gradpress::codec
