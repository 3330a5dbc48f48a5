#include <gradpress/codec.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "codec/codecs.h"
#include "codec/lowrank.h"
#include "codec/wire.h"
#include "kernels/panels.h"
#include "kernels/qr.h"
#include "kernels/vector.h"
#include "spec/facts.h"

namespace gradpress::codec {

namespace {

constexpr std::uint32_t kMark = 0x31504341;  // "ACP1"

/// Which factor a step computes and sends; the other one is its fixed basis.
enum class Step : std::uint32_t { kLeft = 0, kRight = 1 };

/// The basis is what arrived in the last step, made orthonormal when it is first needed: on every
/// rank the same bits from the same bytes.
class AcpState final : public LowRankState {
 public:
  AcpState(const StateOptions& options, bool feedback, std::size_t rank)
      : LowRankState(options, feedback, rank),
        basis_(std::max(left_floats(), right_floats())),
        arriving_(basis_.size()) {
    fill_first_factor(options, basis_.span().first(basis_floats()));
  }

  Step step() const { return step_; }
  /// Floats of the factor this step sends, and of the one it stands on.
  std::size_t payload_floats() const { return floats_of(step_); }
  std::size_t basis_floats() const { return floats_of(other(step_)); }

  std::span<const float> basis() {
    const auto live = basis_.span().first(basis_floats());
    if (!orthonormal_) kernels::orthonormalise(live, live.size() / rank(), rank());
    orthonormal_ = true;
    return live;
  }

  /// Adds a factor that was decoded in training step `step`. What arrived in another training step
  /// that was never finished is dropped.
  void arrived(std::span<const float> factor, std::uint64_t step) {
    const auto sum = arriving_.span().first(factor.size());
    if (arrivals_ == 0 || step != arriving_step_) {
      std::ranges::copy(factor, sum.begin());
      arrivals_ = 0;
    } else {
      kernels::add(sum, factor);
    }
    arriving_step_ = step;
    ++arrivals_;
  }
  bool has_arrivals() const { return arrivals_ != 0; }
  /// What arrived becomes the basis of the next step.
  void advance() {
    std::swap(basis_, arriving_);
    orthonormal_ = false;
    arrivals_ = 0;
    step_ = other(step_);
    is_advanced_ = true;
  }
  void commit() override {
    LowRankState::commit();
    is_advanced_ = false;
  }
  /// The basis of before waits in arriving_, which the next step's first decode overwrites; it is
  /// orthonormal, because decode made it so.
  void rewind() override {
    LowRankState::rewind();
    arrivals_ = 0;
    if (!std::exchange(is_advanced_, false)) return;
    std::swap(basis_, arriving_);
    orthonormal_ = true;
    step_ = other(step_);
  }

  /// Always the orthonormal basis, so that the bytes do not depend on whether it was needed yet.
  std::vector<std::byte> save_extras() const override {
    if (is_dense()) return {};
    std::vector<float> live(basis_.data(), basis_.data() + basis_floats());
    if (!orthonormal_) kernels::orthonormalise(live, live.size() / rank(), rank());
    return save_factor(record(), live);
  }

  Status load_extras(std::span<const std::byte> bytes) override {
    if (is_dense()) return LowRankState::load_extras(bytes);
    const auto found = load_record(record(), bytes);
    if (!found) return found.error();
    if (found->word > static_cast<std::uint32_t>(Step::kRight)) {
      return Status::error(Code::kCorruptPayload, "acpsgd extras: parity ", found->word,
                           ", wanted 0 or 1");
    }
    const auto next = static_cast<Step>(found->word);
    const auto loaded = factor(floats_of(other(next)));
    const Status status = read_factor("acpsgd extras", bytes.subspan(sizeof *found), loaded);
    if (!status.is_ok()) return status;
    const std::size_t length = loaded.size() / rank();
    for (std::size_t k = 0; k < rank(); ++k) {
      const double squares = kernels::sum_squares(loaded.subspan(k * length, length));
      if (!(std::fabs(squares - 1.0) < 1e-3)) {
        return Status::error(Code::kCorruptPayload, "acpsgd extras: column ", k,
                             " has squared length ", squares, ", wanted 1");
      }
    }
    commit();
    std::ranges::copy(loaded, basis_.data());
    step_ = next;
    orthonormal_ = true;
    arrivals_ = 0;
    return {};
  }

 private:
  static Step other(Step step) { return step == Step::kLeft ? Step::kRight : Step::kLeft; }
  std::size_t floats_of(Step step) const {
    return step == Step::kLeft ? left_floats() : right_floats();
  }
  FactorRecord record() const {
    return {.mark = kMark,
            .rank = static_cast<std::uint32_t>(rank()),
            .word = static_cast<std::uint32_t>(step_)};
  }

  Step step_ = Step::kLeft;
  Buffer<float> basis_;
  Buffer<float> arriving_;
  bool orthonormal_ = false;
  std::uint32_t arrivals_ = 0;
  std::uint64_t arriving_step_ = 0;
  bool is_advanced_ = false;  ///< since commit()
};

/// ACP-SGD: one factor of a rank-r approximation a step, alternately; the other one is what the
/// workers agreed on in the step before. Payload: P (rows × r) in even steps of the state, Q (cols
/// × r) in odd ones, column after column; tensors without a matrix view whole.
///
/// The residual is taken against the worker's own factor, so encode needs nothing from the network.
/// A state that decodes must finish every step, whether it encodes or not: parity and basis follow
/// the arrivals. Save between steps: what arrived without a finish is not saved.
class AcpSgdCodec final : public Codec {
 public:
  explicit AcpSgdCodec(const Spec& spec) : Codec(to_text(spec), traits_of(spec)), spec_(spec) {}

  /// Decoded is X·QQᵀ (or PPᵀ·X) with orthonormal Q: an orthogonal projection, so what is left,
  /// X·(I − QQᵀ), is never longer than X; it is X itself when its rows are orthogonal to Q.
  std::optional<double> contraction(const Shape& shape) const override {
    return effective_rank(spec_, shape) == 0 ? 1.0 : 0.0;
  }
  std::size_t payload_bound(const Shape& shape, unsigned /*round*/) const override {
    return std::max(payload_bytes(spec_, shape, 0), payload_bytes(spec_, shape, 1));
  }

 private:
  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override {
    return std::make_unique<AcpState>(options, feedback, effective_rank(spec_, options.shape));
  }

  Result<AcpState*> own_state(State& state) const {
    auto own = state_of<AcpState>(name(), state);
    if (own && (*own)->rank() != effective_rank(spec_, state.shape())) {
      return fail(Code::kInvalidArgument, name(), ": was given a state of rank ", (*own)->rank());
    }
    return own;
  }

  Result<std::size_t> do_encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                                std::span<std::size_t> shard_bytes) const override {
    const auto own = own_state(state);
    if (!own) return tl::unexpected(own.error());
    AcpState& acp = **own;
    if (acp.is_dense()) {
      const auto bytes = encode_dense(name(), acp, args.grad, out);
      if (bytes) shard_bytes[0] = *bytes;
      return bytes;
    }
    const std::span<const float> basis = acp.basis();
    const std::size_t bytes = acp.payload_floats() * sizeof(float);
    bool in_range = false;
    if (acp.step() == Step::kLeft) {
      kernels::pack_panels(basis, acp.size().cols, acp.rank(), acp.panels());
      in_range = acp.project_rows(args.grad);
      std::memcpy(out.data(), acp.left().data(), bytes);
    } else {
      in_range = acp.project_cols(args.grad, basis);
      std::ranges::copy(basis, acp.left().begin());
      const auto factor = acp.factor(acp.payload_floats());
      kernels::unpack_panels(acp.panels(), acp.size().cols, acp.rank(), factor);
      std::memcpy(out.data(), factor.data(), bytes);
    }
    if (!in_range) return tl::unexpected(non_finite(name(), args.grad));
    acp.sent();
    shard_bytes[0] = bytes;
    return bytes;
  }

  Status do_decode(State& state, const DecodeArgs& args, std::span<float> dst) const override {
    const auto own = own_state(state);
    if (!own) return own.error();
    AcpState& acp = **own;
    Status status = check_destination(name(), acp, dst);
    if (!status.is_ok()) return status;
    if (acp.is_dense() && args.overwrite) std::ranges::fill(dst, 0.0F);
    if (acp.is_dense()) return add_dense(name(), args.payload, args.weight, dst);
    const auto factor = acp.factor(acp.payload_floats());
    status = read_factor(name(), args.payload, factor);
    if (!status.is_ok()) return status;
    const std::span<const float> basis = acp.basis();
    const bool left = acp.step() == Step::kLeft;
    kernels::pack_panels(left ? basis : factor, acp.size().cols, acp.rank(), acp.panels());
    if (args.overwrite) {
      acp.set_product(left ? factor : basis, args.weight, dst);
    } else {
      acp.add_product(left ? factor : basis, args.weight, dst);
    }
    acp.arrived(factor, args.step);
    return {};
  }

  Status do_finish(State& state, std::uint32_t /*workers*/,
                   std::span<float> /*dst*/) const override {
    const auto own = own_state(state);
    if (!own) return own.error();
    AcpState& acp = **own;
    if (acp.is_dense()) return {};
    if (!acp.has_arrivals()) {
      return Status::error(Code::kInvalidArgument, name(),
                           ": finish before any decode of this step: no factor has arrived");
    }
    acp.advance();
    return {};
  }

  Spec spec_;
};

}  // namespace

std::unique_ptr<const Codec> make_acpsgd(const Spec& spec) {
  return std::make_unique<AcpSgdCodec>(spec);
}

}  // namespace gradpress::codec
