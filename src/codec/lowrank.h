// What powersgd and acpsgd share: thin factors, a residual that is stored as X and the product last
// sent, and tensors without a matrix view, which travel dense.
#pragma once

#include <gradpress/codec.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "codec/state.h"
#include "kernels/lowrank.h"
#include "spec/spec.h"

namespace gradpress::codec {

/// Factor elements of this magnitude and above are refused as corrupt: honest ones stay below
/// 2^58 · √cols · workers, and sums of refused-free payloads cannot overflow. 2^100.
inline constexpr float kFactorLimit = 0x1.0p100F;

/// Holds X = gradient + residual of the last encode; the residual is X − scale · left · rightᵀ with
/// the factors last sent, formed when X is next read.
/// Memory: X twice, and about fourteen thin factors.
class LowRankState : public ResidualState {
 public:
  /// `rank` is the effective rank: 0 for tensors that travel dense.
  LowRankState(const StateOptions& options, bool feedback, std::size_t rank);

  std::size_t rank() const { return rank_; }
  bool is_dense() const { return rank_ == 0; }
  kernels::MatrixSize size() const { return size_; }
  /// Floats of a left (one row per matrix row) and of a right factor, column after column.
  std::size_t left_floats() const { return size_.rows * rank_; }
  std::size_t right_floats() const { return size_.cols * rank_; }

  /// The factors this step works on; free for use until sent() is called.
  std::span<float> left() { return work_.left.span(); }
  std::span<float> panels() { return work_.panels.span(); }
  /// A factor column after column, of either side, that lasts until the next call which fills it.
  std::span<float> factor(std::size_t floats) { return factor_.span().first(floats); }

  /// In one pass: X ← grad + residual (kept, if there is feedback), left() ← X · panels().
  /// Returns false when an element of grad is out of range; the residual is then as it was.
  bool project_rows(std::span<const float> grad);
  /// The same with panels() ← Xᵀ · left.
  bool project_cols(std::span<const float> grad, std::span<const float> left);
  /// panels() ← Xᵀ · left() for the X that is kept; without feedback for X = grad.
  bool project_kept_cols(std::span<const float> grad);
  /// From now on the residual is X − left() · panels()ᵀ. Without feedback: nothing.
  void sent();

  /// dst += weight · left · panels()ᵀ.
  void add_product(std::span<const float> left, float weight, std::span<float> dst);
  /// dst ← weight · left · panels()ᵀ, to the bit what clearing and adding give. Cost: one pass.
  void set_product(std::span<const float> left, float weight, std::span<float> dst);

 protected:
  void correct(std::uint64_t begin, std::span<float> values) const override;
  void scale_correction(float factor) override { sent_[now()].scale *= factor; }
  void clear_correction() override { sent_[now()].is_there = false; }
  /// Whether X is read once more in the step that forms it.
  virtual bool reads_again() const { return false; }

 private:
  struct Factors {
    Buffer<float> left;
    Buffer<float> panels;
  };

  /// What was subtracted from X, if it is there; empty factors without feedback.
  struct Sent {
    Factors factors;
    bool is_there = false;
    float scale = 1.0F;
  };

  kernels::ThinProduct sent_product() const;
  /// X is formed: of it nothing was sent yet.
  void formed();
  kernels::ProjectPass pass(std::span<const float> grad);
  kernels::ProjectScratch scratch() { return {.floats = floats_.span(), .doubles = sums_.span()}; }

  std::size_t rank_;
  kernels::MatrixSize size_;
  std::array<Sent, 2> sent_;  // by version
  Factors work_;
  Buffer<float> factor_;
  Buffer<float> floats_;
  Buffer<double> sums_;
};

/// The first right factor, as docs/wire_format.md defines it: close to standard normal, and the
/// same on every rank of equal seed, tensor and site.
void fill_first_factor(const StateOptions& options, std::span<float> factor);

/// Copies a factor out of a payload. Errors: kCorruptPayload on a wrong length or an element that
/// is not below kFactorLimit; `factor` is then unspecified.
Status read_factor(const std::string& codec, std::span<const std::byte> payload,
                   std::span<float> factor);

/// The payload of a tensor that travels dense: gradient + residual, which leaves no residual.
Result<std::size_t> encode_dense(const std::string& codec, ResidualState& state,
                                 std::span<const float> grad, std::span<std::byte> out);

/// Adds a dense payload. Errors: kCorruptPayload, as read_factor's; `dst` is then unchanged.
Status add_dense(const std::string& codec, std::span<const std::byte> payload, float weight,
                 std::span<float> dst);

/// kInvalidArgument unless dst is the whole tensor: low-rank payloads have no shards.
Status check_destination(const std::string& codec, const State& state, std::span<float> dst);

/// The bytes of save_extras: a mark of the codec, the rank, one more word, the factor.
struct FactorRecord {
  std::uint32_t mark = 0;
  std::uint32_t rank = 0;
  std::uint32_t word = 0;
};
std::vector<std::byte> save_factor(const FactorRecord& record, std::span<const float> factor);
/// Errors: kCorruptPayload unless the mark and the rank are `want`'s.
Result<FactorRecord> load_record(const FactorRecord& want, std::span<const std::byte> bytes);

}  // namespace gradpress::codec
