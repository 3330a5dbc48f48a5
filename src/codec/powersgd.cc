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

constexpr std::uint32_t kMark = 0x31525750;  // "PWR1"

/// How far a step has come.
enum class Phase : std::uint8_t {
  kIdle,       ///< wants round 0
  kProjected,  ///< round 0 done: wants round 1
  kReady,      ///< round 1 done: wants the payloads of round 1
  kDecoded,    ///< at least one has arrived: wants more, or finish
};

/// The warm start is the mean Q of the last step. Until finish the residual is all of X: a step
/// that breaks off has sent nothing.
class PowerState final : public LowRankState {
 public:
  PowerState(const StateOptions& options, bool feedback, std::size_t rank)
      : LowRankState(options, feedback, rank),
        warm_(right_floats()),
        arriving_(is_dense() ? elements() : right_floats()) {
    fill_first_factor(options, warm_.span());
  }

  Phase phase = Phase::kIdle;
  std::span<const float> warm() const { return warm_.span(); }
  /// The sum of what was decoded; for dense tensors the sum that round 1 was given.
  std::span<float> arriving() { return arriving_.span(); }
  /// Requires: arriving() is the mean by now. What it takes the place of waits in arriving(), which
  /// the next step's first decode overwrites.
  void take_over() {
    std::swap(warm_, arriving_);
    took_over_ = true;
  }
  void commit() override {
    LowRankState::commit();
    took_over_ = false;
  }
  void rewind() override {
    LowRankState::rewind();
    if (std::exchange(took_over_, false)) std::swap(warm_, arriving_);
    phase = Phase::kIdle;
  }

  std::vector<std::byte> save_extras() const override {
    if (is_dense()) return {};
    return save_factor(record(), warm_.span());
  }

  Status load_extras(std::span<const std::byte> bytes) override {
    if (is_dense()) return LowRankState::load_extras(bytes);
    const auto found = load_record(record(), bytes);
    if (!found) return found.error();
    const auto loaded = factor(right_floats());
    const Status status = read_factor("powersgd extras", bytes.subspan(sizeof *found), loaded);
    if (!status.is_ok()) return status;
    commit();
    std::ranges::copy(loaded, warm_.data());
    phase = Phase::kIdle;
    return {};
  }

 protected:
  bool reads_again() const override { return true; }

 private:
  FactorRecord record() const {
    return {.mark = kMark, .rank = static_cast<std::uint32_t>(rank()), .word = 0};
  }

  Buffer<float> warm_;
  Buffer<float> arriving_;
  bool took_over_ = false;  ///< since commit()
};

/// Power-SGD: one step of power iteration per training step, started from the last one's Q.
/// Payloads: P = XQ in round 0; with P̂, the orthonormal basis of the workers' sum, Q = XᵀP̂ in round
/// 1; each column after column. Tensors without a matrix view travel whole in round 0; their round
/// 1 is empty, and decoding it adds the sum that round 1 was given, once a step.
///
/// The residual is taken against what all workers together applied, X − P̂·mean(Q)ᵀ. Without
/// feedback nothing is kept between the rounds: round 1 reads args.grad again, which must be round
/// 0's gradient. With it, round 1 reads the X that is kept and ignores args.grad.
/// Save between steps: only the warm start is saved.
class PowerSgdCodec final : public Codec {
 public:
  explicit PowerSgdCodec(const Spec& spec) : Codec(to_text(spec), traits_of(spec)), spec_(spec) {}

  /// One worker decodes P̂P̂ᵀX, an orthogonal projection: never worse than sending nothing. Of many
  /// workers the same holds for the mean of their X, not for each worker's own.
  std::optional<double> contraction(const Shape& shape) const override {
    return effective_rank(spec_, shape) == 0 ? 1.0 : 0.0;
  }
  std::size_t payload_bound(const Shape& shape, unsigned round) const override {
    return payload_bytes(spec_, shape, round);
  }

 private:
  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override {
    return std::make_unique<PowerState>(options, feedback, effective_rank(spec_, options.shape));
  }

  Result<PowerState*> own_state(State& state) const {
    auto own = state_of<PowerState>(name(), state);
    if (own && (*own)->rank() != effective_rank(spec_, state.shape())) {
      return fail(Code::kInvalidArgument, name(), ": was given a state of rank ", (*own)->rank());
    }
    return own;
  }

  Result<std::size_t> do_encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                                std::span<std::size_t> shard_bytes) const override {
    const auto own = own_state(state);
    if (!own) return tl::unexpected(own.error());
    const auto bytes =
        args.round == 0 ? encode_left(**own, args, out) : encode_right(**own, args, out);
    if (bytes) shard_bytes[0] = *bytes;
    return bytes;
  }

  /// Round 0: P = XQ.
  Result<std::size_t> encode_left(PowerState& power, const EncodeArgs& args,
                                  std::span<std::byte> out) const {
    power.phase = Phase::kIdle;
    if (power.is_dense()) {
      const auto bytes = encode_dense(name(), power, args.grad, out);
      if (bytes) power.phase = Phase::kProjected;
      return bytes;
    }
    const auto start = power.factor(power.right_floats());
    std::ranges::copy(power.warm(), start.begin());
    scale_columns(start, power.rank());
    kernels::pack_panels(start, power.size().cols, power.rank(), power.panels());
    if (!power.project_rows(args.grad)) return tl::unexpected(non_finite(name(), args.grad));
    power.phase = Phase::kProjected;
    std::memcpy(out.data(), power.left().data(), power.left().size_bytes());
    return power.left().size_bytes();
  }

  /// Round 1: Q = XᵀP̂.
  Result<std::size_t> encode_right(PowerState& power, const EncodeArgs& args,
                                   std::span<std::byte> out) const {
    if (power.phase != Phase::kProjected) {
      return fail(Code::kInvalidArgument, name(), ": round 1 without a round 0 before it");
    }
    const auto sum = power.is_dense() ? power.arriving() : power.left();
    if (args.reduced.size() != sum.size_bytes()) {
      return fail(Code::kInvalidArgument, name(), ": round 1 wants round 0's payload summed, ",
                  sum.size_bytes(), " B, got ", args.reduced.size(), " B");
    }
    const Status status = read_factor(name(), args.reduced, sum);
    if (!status.is_ok()) return tl::unexpected(status);
    if (power.is_dense()) {
      power.phase = Phase::kReady;
      return 0;
    }
    kernels::orthonormalise(power.left(), power.size().rows, power.rank());
    if (!power.project_kept_cols(args.grad)) {
      return tl::unexpected(non_finite(name(), args.grad));
    }
    const auto factor = power.factor(power.right_floats());
    kernels::unpack_panels(power.panels(), power.size().cols, power.rank(), factor);
    std::memcpy(out.data(), factor.data(), factor.size_bytes());
    power.phase = Phase::kReady;
    return factor.size_bytes();
  }

  /// By powers of two, to a largest element of 1 to 2: Q's columns are as long as X's singular
  /// values, and XQ would square those. The basis of the sum of XQ is the same.
  static void scale_columns(std::span<float> factor, std::size_t rank) {
    const std::size_t length = factor.size() / rank;
    for (std::size_t k = 0; k < rank; ++k)
      kernels::scale_to_one(factor.subspan(k * length, length));
  }

  Status do_decode(State& state, const DecodeArgs& args, std::span<float> dst) const override {
    const auto own = own_state(state);
    if (!own) return own.error();
    PowerState& power = **own;
    Status status = check_destination(name(), power, dst);
    if (!status.is_ok()) return status;
    if (power.phase != Phase::kReady && power.phase != Phase::kDecoded) {
      return Status::error(Code::kInvalidArgument, name(),
                           ": decode before this step's round 1, which gives the basis");
    }
    const auto factor = power.factor(power.right_floats());
    status = read_factor(name(), args.payload, factor);
    if (!status.is_ok()) return status;
    const bool first = power.phase == Phase::kReady;
    power.phase = Phase::kDecoded;
    if (power.is_dense()) {
      if (args.overwrite) std::ranges::fill(dst, 0.0F);
      if (first) kernels::add_weighted(std::as_bytes(power.arriving()), args.weight, dst);
      return {};
    }
    kernels::pack_panels(factor, power.size().cols, power.rank(), power.panels());
    if (args.overwrite) {
      power.set_product(power.left(), args.weight, dst);
    } else {
      power.add_product(power.left(), args.weight, dst);
    }
    if (first) {
      std::ranges::copy(factor, power.arriving().begin());
    } else {
      kernels::add(power.arriving(), factor);
    }
    return {};
  }

  Status do_finish(State& state, std::uint32_t workers, std::span<float> /*dst*/) const override {
    const auto own = own_state(state);
    if (!own) return own.error();
    PowerState& power = **own;
    if (power.phase != Phase::kDecoded) {
      return Status::error(Code::kInvalidArgument, name(),
                           ": finish before any decode of this step: nothing has arrived");
    }
    power.phase = Phase::kIdle;
    if (power.is_dense()) return {};
    kernels::scale(power.arriving(), 1.0F / static_cast<float>(workers));
    power.take_over();
    kernels::pack_panels(power.warm(), power.size().cols, power.rank(), power.panels());
    power.sent();
    return {};
  }

  Spec spec_;
};

}  // namespace

std::unique_ptr<const Codec> make_powersgd(const Spec& spec) {
  return std::make_unique<PowerSgdCodec>(spec);
}

}  // namespace gradpress::codec
