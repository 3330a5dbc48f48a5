// Warm-up of a sparsifier: which codec an epoch uses. Pure arithmetic.
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/spec.h"

namespace gradpress::codec {

struct WarmUp {
  std::uint32_t dense_epochs = 0;  ///< uncompressed at the start (RedSync's own warm-up: 1)
  /// Epochs after those in which the ratio falls exponentially, as DGC's code does it: of E epochs,
  /// epoch e has max(R^((e+1)/(E+1)), R) for the final ratio R.
  std::uint32_t falling_epochs = 0;
  /// Instead of falling_epochs: one ratio per epoch, 1 for uncompressed.
  std::vector<double> ratios;
};

/// A sparsifier's text, epoch by epoch. Threads: any number at once.
class Schedule {
 public:
  /// `text` is the codec after the warm-up, a sparsifier such as "dgc:0.001".
  /// Errors: kInvalidArgument when it is none, when a ratio is not above 0 and at most 1, or when
  /// both ways of warming up are asked for.
  static Result<Schedule> make(std::string_view text, const WarmUp& warm_up);

  /// "none" in uncompressed epochs, else the codec's text with the epoch's ratio.
  std::string codec_at(std::uint64_t epoch) const;
  /// The first epoch with the final ratio.
  std::uint64_t warm_epochs() const { return ratios_.size(); }

 private:
  Schedule(const Spec& spec, std::vector<double> ratios)
      : spec_(spec), ratios_(std::move(ratios)) {}

  Spec spec_;
  std::vector<double> ratios_;  // of the epochs before the final ratio
};

}  // namespace gradpress::codec
