#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "codec/codecs.h"
#include "codec/redsync_choice.h"
#include "codec/sparse.h"
#include "codec/wire.h"

namespace gradpress::codec {

namespace {

/// A threshold ratio and the steps it still serves.
struct Reused {
  double ratio = 0.0;
  std::uint32_t steps_left = 0;
};
/// As saved: without padding.
constexpr std::size_t kReusedBytes = sizeof(double) + sizeof(std::uint32_t);

/// Holds one ratio per shard; those of the running encode wait until all of it was in range.
class RedSyncState final : public SparseState {
 public:
  using SparseState::SparseState;

  /// Extras: u32 shards; per shard f64 ratio, u32 steps left.
  std::vector<std::byte> save_extras() const override {
    std::vector<std::byte> bytes;
    bytes.reserve(sizeof(std::uint32_t) + reused_.size() * kReusedBytes);
    put(bytes, static_cast<std::uint32_t>(reused_.size()));
    for (const Reused& reused : reused_) {
      put(bytes, reused.ratio);
      put(bytes, reused.steps_left);
    }
    return bytes;
  }

  Status load_extras(std::span<const std::byte> bytes) override {
    const unsigned reuse = spec().redsync.reuse;
    constexpr std::size_t kHead = sizeof(std::uint32_t);
    if (bytes.size() < kHead ||
        bytes.size() != kHead + kReusedBytes * std::uint64_t{load_word<std::uint32_t>(bytes, 0)}) {
      return Status::error(Code::kCorruptPayload, "redsync: wanted a count and as many ratios of ",
                           kReusedBytes, " B, got ", bytes.size(), " B");
    }
    std::vector<Reused> loaded((bytes.size() - kHead) / kReusedBytes);
    for (std::size_t i = 0; i < loaded.size(); ++i) {
      const std::size_t at = kHead + i * kReusedBytes;
      loaded[i] = {.ratio = load_word<double>(bytes, at),
                   .steps_left = load_word<std::uint32_t>(bytes, at + sizeof(double))};
      if (!(loaded[i].ratio >= 0.0 && loaded[i].ratio <= 1.0) || loaded[i].steps_left >= reuse) {
        return Status::error(Code::kCorruptPayload,
                             "redsync: wanted a ratio from 0 to 1 for less than ", reuse,
                             " more steps, got ", loaded[i].ratio, " for ", loaded[i].steps_left);
      }
    }
    commit();
    reused_ = std::move(loaded);
    return {};
  }
  void commit() override {
    SparseState::commit();
    is_replaced_ = false;
  }
  void rewind() override {
    SparseState::rewind();
    if (std::exchange(is_replaced_, false)) std::swap(reused_, noted_);
  }

  /// What shard `index` may reuse; nothing after an encode of another number of shards.
  Reused reused(std::uint32_t shards, std::uint32_t index) const {
    return reused_.size() == shards ? reused_[index] : Reused{};
  }
  void note(std::uint32_t shards, std::uint32_t index, Reused next) {
    reused_.reserve(shards);  // so that only the first encode of so many shards allocates
    noted_.resize(shards);
    noted_[index] = next;
  }
  void keep_noted() {
    std::swap(reused_, noted_);
    is_replaced_ = true;
  }

 private:
  std::vector<Reused> reused_;
  std::vector<Reused> noted_;  ///< of the encode under way; after it, what was reused before
  bool is_replaced_ = false;   ///< since commit()
};

/// RedSync: selection by tensor size; large tensors by a threshold between mean and largest
/// magnitude whose ratio serves several steps. Payload: c u32 indices, c f32 values; c = k, or what
/// the search's band allows.
class RedSyncCodec final : public SizeCodec {
 public:
  explicit RedSyncCodec(const Spec& spec) : SizeCodec(spec) {}

  /// What is sent is always the c largest, and c is at least 1 and, by search, band_low·k, else k.
  std::optional<double> contraction(const Shape& shape) const override {
    const std::uint64_t n = shape.elements();
    if (n == 0) return 1.0;
    const auto k = static_cast<double>(kept_elements(spec(), n));
    const bool searched = n > spec().redsync.trimmed_max;
    const double least = searched ? std::ceil(spec().redsync.band_low * k) : k;
    return contraction_of(std::max(1.0, least), n);
  }

 private:
  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override {
    return std::make_unique<RedSyncState>(
        options, feedback,
        SparseState::Needs{.spec = spec(),
                           .sample_elems = default_sample(options.shape.elements())});
  }

  void choose(SparseState& state, const Shard& shard,
              const kernels::ScanTotals& totals) const override {
    auto& own = static_cast<RedSyncState&>(state);
    RedSyncChoice choice(spec().redsync, own.candidates(), totals, shard.elements, shard.kept);
    Reused next = own.reused(shard.shards, shard.index);
    if (choice.by_search() && next.steps_left > 0 && choice.choose_by(next.ratio)) {
      --next.steps_left;
    } else {
      const std::optional<double> ratio = choice.choose();
      next = ratio ? Reused{.ratio = *ratio, .steps_left = spec().redsync.reuse - 1} : Reused{};
    }
    own.note(shard.shards, shard.index, next);
  }

  void keep_noted(SparseState& state) const override {
    static_cast<RedSyncState&>(state).keep_noted();
  }
};

}  // namespace

std::unique_ptr<const Codec> make_redsync(const Spec& spec) {
  return std::make_unique<RedSyncCodec>(spec);
}

}  // namespace gradpress::codec
