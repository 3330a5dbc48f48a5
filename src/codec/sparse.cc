#include "codec/sparse.h"

#include <cmath>
#include <cstring>

#include "codec/wire.h"
#include "kernels/sparse.h"
#include "spec/facts.h"

namespace gradpress::codec {

kernels::RandomKey shard_key(const StateOptions& options, std::uint64_t step, std::uint32_t index) {
  return kernels::random_key({.seed = options.seed,
                              .tensor = options.tensor,
                              .step = step,
                              .site = options.site,
                              .shard = std::uint64_t{options.first_shard} + index});
}

SparseState::SparseState(const StateOptions& options, bool feedback, const Needs& needs)
    : ResidualState(options, feedback),
      spec_(needs.spec),
      candidates_({.elements = options.shape.elements(),
                   .kept = kept_elements(needs.spec, options.shape.elements()),
                   .sample_elems = needs.sample_elems}) {}

SizeCodec::SizeCodec(const Spec& spec)
    : Sparsifier(to_text(spec), traits_of(spec)),
      spec_(spec),
      coded_(has_coded_entries(spec)),
      wire_(spec) {}

double SizeCodec::contraction_of(double count, std::uint64_t elements) const {
  const auto n = static_cast<double>(elements);
  switch (spec_.value) {
    case ValueCode::kFp32:
      return count / n;
    case ValueCode::kFp16:  // carries nothing of small elements, 65504 of however large ones
      return 0.0;
    case ValueCode::kBf16:
      return count / n * (1.0 - 0x1.0p-16);
    case ValueCode::kTwoBits:
      // Bins of one sign, each sent as its mean: Σ count·mean² ≥ (Σ|sent|)²/c, and the c largest
      // have at least c/n of Σ|x| ≥ ‖x‖.
      return count / (n * n);
  }
  return 0.0;
}

std::size_t SizeCodec::payload_bound(const Shape& shape, unsigned /*round*/) const {
  return payload_bytes(spec_, shape);
}

SizeCodec::Wanted SizeCodec::wanted(const SparseState& /*state*/, const Shard& shard) const {
  return {.key = kernels::kByMagnitude, .sample_elems = default_sample(shard.elements)};
}

kernels::ScanTotals SizeCodec::collect(SparseState& state, const Candidates::Source& source) const {
  return state.candidates().collect(source);
}

void SizeCodec::keep_noted(SparseState& /*state*/) const {}

std::unique_ptr<State> SizeCodec::do_make_state(const StateOptions& options, bool feedback) const {
  return std::make_unique<SparseState>(
      options, feedback,
      SparseState::Needs{.spec = spec_, .sample_elems = default_sample(options.shape.elements())});
}

Result<std::size_t> SizeCodec::do_encode(State& state, const EncodeArgs& args,
                                         std::span<std::byte> out,
                                         std::span<std::size_t> shard_bytes) const {
  const auto own = state_of<SparseState>(name(), state);
  if (!own) return tl::unexpected(own.error());
  SparseState& sparse = **own;
  const std::uint64_t elements = args.grad.size();
  const auto stored_part = [&sparse](const ShardRange& range) {
    return sparse.has_feedback() ? sparse.renewal().subspan(range.begin, range.count)
                                 : kernels::Renewal();
  };
  bool in_range = true;
  std::size_t used = 0;
  for (std::uint32_t index = 0; index < args.shards; ++index) {
    const ShardRange range = shard_range(elements, args.shards, index);
    const Shard shard{.shards = args.shards,
                      .index = index,
                      .elements = range.count,
                      .kept = kept_elements(spec_, range.count)};
    const Wanted want = wanted(sparse, shard);
    const kernels::ScanTotals totals =
        collect(sparse, {.grad = args.grad.subspan(range.begin, range.count),
                         .stored = stored_part(range),
                         .key = want.key,
                         .kept = shard.kept,
                         .sample_elems = want.sample_elems,
                         .sample_ratio = want.sample_ratio,
                         .random = shard_key(sparse.options(), args.step, index)});
    in_range = in_range && totals.in_range;
    choose(sparse, shard, totals);
    shard_bytes[index] = write(sparse.candidates(), range.count, out.subspan(used));
    used += shard_bytes[index];
  }
  if (!in_range) return tl::unexpected(non_finite(name(), args.grad));
  if (sparse.has_feedback()) {
    std::size_t begin = 0;
    for (std::uint32_t index = 0; index < args.shards; ++index) {
      const auto payload = out.subspan(begin, shard_bytes[index]);
      const auto residual = stored_part(shard_range(elements, args.shards, index)).to;
      // The candidates are those of the last shard, which need not be read back.
      if (coded_ && index + 1 == args.shards) {
        wire_.settle(sparse.candidates().index(), payload, residual);
      } else {
        settle(payload, residual);
      }
      begin += shard_bytes[index];
    }
  }
  sparse.renewed();
  keep_noted(sparse);
  return used;
}

std::size_t SizeCodec::write(const Candidates& chosen, std::uint64_t elements,
                             std::span<std::byte> out) const {
  if (coded_) return wire_.write(chosen.index(), chosen.value(), elements, out);
  if (chosen.size() == 0) return 0;
  const auto index = std::as_bytes(chosen.index());
  const auto value = std::as_bytes(chosen.value());
  std::memcpy(out.data(), index.data(), index.size());
  std::memcpy(out.data() + index.size(), value.data(), value.size());
  return index.size() + value.size();
}

void SizeCodec::settle(std::span<const std::byte> payload, std::span<float> residual) const {
  if (!coded_) return kernels::scatter_zero(indices(payload), residual);
  // What rounding loses stays; a payload of our own has no errors.
  (void)wire_.add(name(), payload, -1.0F, residual);
}

std::span<const std::byte> SizeCodec::indices(std::span<const std::byte> payload) const {
  return payload.first(payload.size() / 2);
}

double SizeCodec::drop_sent(const Sent& sent, std::span<float> values) const {
  if (coded_) return wire_.clear(sent.payload, values);
  const auto at = indices(sent.payload);
  double dropped = 0.0;
  for (std::size_t i = 0; i < at.size(); i += sizeof(std::uint32_t)) {
    float& value = values[load_word<std::uint32_t>(at, i)];
    dropped += static_cast<double>(std::fabs(value));
    value = 0.0F;
  }
  return dropped;
}

Status SizeCodec::do_decode(State& /*state*/, const DecodeArgs& args, std::span<float> dst) const {
  if (coded_) return wire_.add(name(), args.payload, args.weight, dst);
  constexpr std::size_t kPair = sizeof(std::uint32_t) + sizeof(float);
  const std::size_t got = args.payload.size();
  const std::size_t most = payload_bound(Shape::flat(dst.size()), 0);
  if (got > most || got % kPair != 0 || (traits().fixed_size && got != most)) {
    return bad_length(name(), dst.size(), most, got);
  }
  const auto at = args.payload.first(got / 2);
  const auto values = args.payload.subspan(got / 2);
  if (!kernels::indices_valid(at, dst.size())) return bad_indices(name(), dst.size());
  if (!kernels::values_finite(values)) {
    return Status::error(Code::kCorruptPayload, name(), ": a value is not finite");
  }
  kernels::scatter_add(at, values, args.weight, dst);
  return {};
}

Status bad_indices(const std::string& codec, std::uint64_t elements) {
  return Status::error(Code::kCorruptPayload, codec, ": wanted strictly ascending indices below ",
                       elements, ", got others");
}

Status bad_length(const std::string& codec, std::uint64_t elements, std::uint64_t most_bytes,
                  std::uint64_t got_bytes) {
  return Status::error(Code::kCorruptPayload, codec, ": ", elements,
                       " elements come in whole entries and up to ", most_bytes, " B, got ",
                       got_bytes, " B");
}

}  // namespace gradpress::codec
