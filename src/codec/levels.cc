#include "codec/levels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "spec/facts.h"

namespace gradpress::codec {

using kernels::SignLevels;
using kernels::SignSums;

kernels::SignLevels LevelState::sent(std::uint32_t shards, std::uint32_t index) {
  const std::vector<SignLevels>& last = sent_[now()];
  if (!last.empty() && last.size() != shards) settle();
  return last.empty() ? SignLevels{} : last[index];
}

void LevelState::set_sent(std::uint32_t shards, std::uint32_t index, SignLevels levels) {
  sent_[now()].reserve(shards);  // so that only the first encode of so many shards allocates
  sent_[next()].resize(shards);
  sent_[next()][index] = levels;
}

void LevelState::correct(std::uint64_t begin, std::span<float> values) const {
  const std::vector<SignLevels>& sent = sent_[now()];
  const auto shards = static_cast<std::uint32_t>(sent.size());
  for (std::uint32_t index = 0; index < shards; ++index) {
    const ShardRange shard = shard_range(elements(), shards, index);
    const std::uint64_t from = std::max(begin, shard.begin);
    const std::uint64_t to = std::min(begin + values.size(), shard.begin + shard.count);
    if (from < to) kernels::subtract_levels(values.subspan(from - begin, to - from), sent[index]);
  }
}

void LevelState::scale_correction(float factor) {
  for (SignLevels& levels : sent_[now()]) {
    levels = {.positive = levels.positive * factor, .negative = levels.negative * factor};
    // A negative factor turned every stored sign around.
    if (std::signbit(factor)) std::swap(levels.positive, levels.negative);
  }
}

LevelCodec::LevelCodec(const Spec& spec, std::size_t header_floats)
    : Codec(to_text(spec), traits_of(spec)),
      spec_(spec),
      header_bytes_(header_floats * sizeof(float)) {}

std::size_t LevelCodec::payload_bound(const Shape& shape, unsigned /*round*/) const {
  return payload_bytes(spec_, shape);
}

std::unique_ptr<State> LevelCodec::do_make_state(const StateOptions& options, bool feedback) const {
  return std::make_unique<LevelState>(options, feedback);
}

Result<std::size_t> LevelCodec::do_encode(State& state, const EncodeArgs& args,
                                          std::span<std::byte> out,
                                          std::span<std::size_t> shard_bytes) const {
  const auto own = state_of<LevelState>(name(), state);
  if (!own) return tl::unexpected(own.error());
  LevelState& level_state = **own;
  bool in_range = true;
  std::size_t used = 0;
  for (std::uint32_t index = 0; index < args.shards; ++index) {
    const ShardRange shard = shard_range(args.grad.size(), args.shards, index);
    const auto grad = args.grad.subspan(shard.begin, shard.count);
    const auto payload = out.subspan(used, payload_bound(Shape::flat(shard.count), 0));
    const auto bits = payload.subspan(header_bytes_, (shard.count + 7) / 8);
    const SignSums sums =
        level_state.has_feedback()
            ? kernels::encode_signs(grad, level_state.renewal().subspan(shard.begin, shard.count),
                                    level_state.sent(args.shards, index), kGradientLimit, bits)
            : kernels::encode_signs(grad, kGradientLimit, bits);
    const auto padding = payload.subspan(header_bytes_ + bits.size());
    std::fill(padding.begin(), padding.end(), std::byte{0});
    const SignLevels chosen = levels(sums, shard.count);
    write_header(chosen, payload.first(header_bytes_));
    if (level_state.has_feedback()) level_state.set_sent(args.shards, index, chosen);
    in_range = in_range && sums.in_range;
    shard_bytes[index] = payload.size();
    used += payload.size();
  }
  if (!in_range) return tl::unexpected(non_finite(name(), args.grad));
  level_state.renewed();
  return used;
}

Status LevelCodec::do_decode(State& /*state*/, const DecodeArgs& args, std::span<float> dst) const {
  const std::size_t want = payload_bound(Shape::flat(dst.size()), 0);
  if (args.payload.size() != want) {
    return Status::error(Code::kCorruptPayload, name(), ": ", dst.size(), " elements come in ",
                         want, " B, got ", args.payload.size(), " B");
  }
  SignLevels decoded = read_header(args.payload.first(header_bytes_));
  if (!std::isfinite(decoded.positive) || !std::isfinite(decoded.negative)) {
    return Status::error(Code::kCorruptPayload, name(), ": a level is ", decoded.positive, " or ",
                         decoded.negative, ", wanted finite values");
  }
  decoded.positive *= args.weight;
  decoded.negative *= args.weight;
  kernels::add_levels(args.payload.subspan(header_bytes_), decoded, dst);
  return {};
}

}  // namespace gradpress::codec
