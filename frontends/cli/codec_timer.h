// Times codecs against memcpy of the same gradient, turn by turn, so that both meet the same
// machine.
#pragma once

#include <gradpress/codec.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace gradpress::cli {

/// Median, least and most of repeated measurements.
struct Spread {
  double median = 0.0;
  double least = 0.0;
  double most = 0.0;
};
Spread spread_of(std::vector<double> values);

/// How often a thing is done: `warmup` turns that do not count, then `timed` ones that do.
struct Turns {
  unsigned timed = 24;
  unsigned warmup = 2;
};

/// Times in copies: 1.0 is one memcpy of the gradient, of those between the turns the median.
struct CodecCost {
  std::size_t elements = 0;
  bool feedback = false;      ///< whether the encode carried a residual
  double first_encode = 0.0;  ///< the first encode of a fresh state
  unsigned rounds = 1;        ///< that one step encodes in
  Spread encode = {};         ///< all rounds of one step
  Spread decode = {};         ///< decode-add of one payload
  double copy_us = 0.0;       ///< what one copy took
  std::size_t payload_bytes = 0;
};

/// Threads: one; it times the calling thread. Memory: ten gradients.
class CodecTimer {
 public:
  /// Rotated so that no codec meets the gradient whose threshold or cache lines it still has.
  static constexpr std::size_t kGradients = 8;

  explicit CodecTimer(std::size_t elements);

  /// Verifies two steps (decoded + residual = gradients; without feedback, the declared error),
  /// then times. Errors: kInternal when the answer is wrong: then nothing was timed.
  Result<CodecCost> cost(const Codec& codec, const Turns& turns);

  /// The least any encode with error feedback must do: r += g, one pass.
  Spread update_pass(const Turns& turns);
  /// std::nth_element on the magnitudes of the same gradients, which it must first copy.
  Spread nth_element(const Turns& turns, std::size_t kept);
  /// Of every memcpy so far, in 10^9 gradient bytes a second.
  Spread memcpy_gbs() const;

 private:
  double copy_seconds(std::size_t turn);
  Spread in_copies(const Turns& turns, const std::function<void(std::size_t)>& work);

  std::size_t elements_;
  std::vector<std::vector<float>> gradients_;
  std::vector<float> copy_;
  std::vector<double> copies_;
};

}  // namespace gradpress::cli
