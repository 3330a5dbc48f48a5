// What changes with the steps: learning rate and codec. Pure arithmetic.
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "settings.h"

namespace gradpress::trainer {

/// The rate of `step` (from 0) in a run of `steps`.
/// Requires: a schedule that check() accepted.
double learning_rate(const OptimizerSettings& optimizer, const ScheduleSettings& schedule,
                     std::int64_t step, std::int64_t steps);

/// A sparsifier's warm-up: dense, then ratios that fall exponentially to its own.
class CodecSchedule {
 public:
  /// Errors: kInvalidArgument: falling epochs for a codec without a ratio.
  static Result<CodecSchedule> make(const CompressionSettings& settings,
                                    std::int64_t steps_per_epoch);

  const std::string& codec_at(std::int64_t step) const;
  /// The first step with the codec itself.
  std::int64_t warm_steps() const { return stages_.back().begin; }

 private:
  struct Stage {
    std::int64_t begin;
    std::string codec;
  };
  explicit CodecSchedule(std::vector<Stage> stages) : stages_(std::move(stages)) {}

  std::vector<Stage> stages_;  // the first begins with 0, the last has the codec itself
};

}  // namespace gradpress::trainer
