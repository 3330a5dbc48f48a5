#include <cmath>
#include <vector>

#include "codec/codecs.h"
#include "codec/redsync_choice.h"
#include "codec/sparse.h"
#include "codec/wire.h"
#include "kernels/sparse.h"

namespace gradpress::codec {

namespace {

/// Whose turn it is: positive elements first, then in turns.
class DirectionState final : public SparseState {
 public:
  using SparseState::SparseState;

  /// Extras: one byte, 1 when the next step takes negative elements.
  std::vector<std::byte> save_extras() const override {
    return {negative_ ? std::byte{1} : std::byte{0}};
  }
  Status load_extras(std::span<const std::byte> bytes) override {
    if (bytes.size() != 1 || bytes[0] > std::byte{1}) {
      return Status::error(Code::kCorruptPayload,
                           "redsync-q: wanted one byte of direction, 0 or 1, got ", bytes.size(),
                           " B");
    }
    commit();
    negative_ = bytes[0] == std::byte{1};
    return {};
  }
  void commit() override {
    SparseState::commit();
    is_turned_ = false;
  }
  void rewind() override {
    SparseState::rewind();
    if (is_turned_) turn();
    is_turned_ = false;
  }

  kernels::KeyMap key() const { return negative_ ? kernels::kByNegative : kernels::kByValue; }
  void turn() {
    negative_ = !negative_;
    is_turned_ = true;
  }

 private:
  bool negative_ = false;
  bool is_turned_ = false;  ///< since commit()
};

/// RedSync with quantised values: one step sends the largest positive elements, the next the
/// largest negative ones, as indices and one mean; what the mean misses stays in the residual.
/// Payload: f32 mean, c u32 indices, c ≤ k. No ratio is reused: the next step has the other sign.
class RedSyncQCodec final : public SizeCodec {
 public:
  explicit RedSyncQCodec(const Spec& spec) : SizeCodec(spec) {}

  /// ‖x − sent‖² = ‖x‖² − c·mean²: never worse than nothing, but nothing it is when no element has
  /// the step's sign.
  std::optional<double> contraction(const Shape& /*shape*/) const override { return 0.0; }

 private:
  static constexpr std::size_t kHead = sizeof(float);

  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override {
    return std::make_unique<DirectionState>(
        options, feedback,
        SparseState::Needs{.spec = spec(),
                           .sample_elems = default_sample(options.shape.elements())});
  }

  Wanted wanted(const SparseState& state, const Shard& shard) const override {
    return {.key = static_cast<const DirectionState&>(state).key(),
            .sample_elems = default_sample(shard.elements)};
  }

  void choose(SparseState& state, const Shard& shard,
              const kernels::ScanTotals& totals) const override {
    (void)RedSyncChoice(spec().redsync, state.candidates(), totals, shard.elements, shard.kept)
        .choose();
  }

  void keep_noted(SparseState& state) const override { static_cast<DirectionState&>(state).turn(); }

  std::size_t write(const Candidates& chosen, std::uint64_t /*elements*/,
                    std::span<std::byte> out) const override {
    double sum = 0.0;
    for (const float value : chosen.value()) sum += static_cast<double>(value);
    const double mean = chosen.size() == 0 ? 0.0 : sum / static_cast<double>(chosen.size());
    store_word(out, 0, static_cast<float>(mean));
    const auto index = std::as_bytes(chosen.index());
    if (!index.empty()) std::memcpy(out.data() + kHead, index.data(), index.size());
    return kHead + index.size();
  }

  void settle(std::span<const std::byte> payload, std::span<float> residual) const override {
    kernels::scatter_add(indices(payload), -load_word<float>(payload, 0), residual);
  }

  std::span<const std::byte> indices(std::span<const std::byte> payload) const override {
    return payload.subspan(kHead);
  }

  Status do_decode(State& /*state*/, const DecodeArgs& args, std::span<float> dst) const override {
    const std::size_t got = args.payload.size();
    const std::size_t most = payload_bound(Shape::flat(dst.size()), 0);
    if (got < kHead || got > most || (got - kHead) % sizeof(std::uint32_t) != 0) {
      return bad_length(name(), dst.size(), most, got);
    }
    const auto value = load_word<float>(args.payload, 0);
    if (!std::isfinite(value)) {
      return Status::error(Code::kCorruptPayload, name(), ": the value is ", value,
                           ", wanted a finite one");
    }
    const auto at = indices(args.payload);
    if (!kernels::indices_valid(at, dst.size())) return bad_indices(name(), dst.size());
    kernels::scatter_add(at, value * args.weight, dst);
    return {};
  }
};

}  // namespace

std::unique_ptr<const Codec> make_redsync_q(const Spec& spec) {
  return std::make_unique<RedSyncQCodec>(spec);
}

}  // namespace gradpress::codec
