// The residual that most states carry, in a form each codec chooses.
#pragma once

#include <gradpress/codec.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "kernels/feedback.h"

namespace gradpress::codec {

/// Stores one float per element; the residual is stored − correction, where the correction is
/// whatever small description the codec keeps (a level per sign, two factors) and may be nothing at
/// all. There are two versions of both: an encode reads the one and writes the other.
class ResidualState : public State {
 public:
  ResidualState(const StateOptions& options, bool feedback);

  const Shape& shape() const noexcept override { return options_.shape; }
  bool has_feedback() const noexcept override { return feedback_; }
  void materialise(std::span<float> out) const override;
  Status load(std::span<const float> residual) override;
  void scale(float factor) override;
  double norm() const override;
  std::vector<std::byte> save_extras() const override { return {}; }
  Status load_extras(std::span<const std::byte> bytes) override;
  void commit() override { is_renewed_ = false; }
  void rewind() override;

  const StateOptions& options() const { return options_; }
  std::size_t elements() const { return static_cast<std::size_t>(options_.shape.elements()); }
  /// Empty without feedback.
  std::span<float> stored() { return stored_[now_].span(); }
  /// What an encode reads, stored(), and what it writes. Empty without feedback.
  kernels::Renewal renewal() {
    return {stored_[now_].span(), stored_[next()].span(), elements() >= kPastCaches};
  }
  /// An encode has written all of renewal(): that is stored() from now on, until rewind().
  void renewed();
  /// Makes stored the residual itself and the correction nothing. Cost: one pass, if there is a
  /// correction.
  void settle();

 protected:
  /// The version in force, 0 or 1, and the one that the next encode writes.
  unsigned now() const { return now_; }
  unsigned next() const { return 1 - now_; }
  /// Turns `values`, the stored elements from `begin` on, into the residual. This and the next two
  /// are about the correction of version now().
  virtual void correct(std::uint64_t begin, std::span<float> values) const;
  /// Keeps the correction right when stored is multiplied by `factor`.
  virtual void scale_correction(float factor);
  virtual void clear_correction();

 private:
  /// From here on an encode writes the residual past the caches: it is next read a step later, when
  /// as much as this and the rest of the model have gone through them.
  static constexpr std::size_t kPastCaches = 4096;

  StateOptions options_;
  bool feedback_;
  std::array<Buffer<float>, 2> stored_;
  unsigned now_ = 0;
  bool is_renewed_ = false;  ///< since commit()
};

/// kNonFinite, naming the first element out of range. Requires: there is one.
Status non_finite(const std::string& codec, std::span<const float> grad);

/// The state as its codec's own type. Errors: kInvalidArgument when another codec made it.
template <class S>
Result<S*> state_of(const std::string& codec, State& state) {
  if (auto* own = dynamic_cast<S*>(&state)) return own;
  return fail(Code::kInvalidArgument, codec, ": was given a state that another codec made");
}

/// Appends to and reads from the bytes of save_extras; little-endian like the payloads.
template <class T>
void put(std::vector<std::byte>& bytes, const T& value) {
  const auto* from = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof value);
}

}  // namespace gradpress::codec
