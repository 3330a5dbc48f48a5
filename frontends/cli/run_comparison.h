// Training runs side by side: how fast, how far, how many bytes, against the first of them.
#pragma once

#include <gradpress/status.h>

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "train_run.h"

namespace gradpress::cli {

struct ComparedRun {
  std::optional<double> best_value = {};
  std::optional<double> seconds_to_target = {};  ///< none: it never got there
  std::optional<double> step_speedup = {};       ///< the first run's time per step over this one's
  std::optional<double> target_speedup = {};     ///< the same of the time to the target
};

struct RunComparison {
  std::vector<ComparedRun> rows;      ///< one per run, in their order
  std::optional<double> target = {};  ///< none without evaluations, or with unlike metrics
  bool target_given = false;
  std::vector<std::string> notes;  ///< what a reader must know before comparing
};

/// The target is `target`, or what every run reached: the worst of their best values.
/// Requires: at least one run.
/// Errors: kInvalidArgument for a target when the runs have different metrics.
Result<RunComparison> compare_runs(const std::vector<TrainRun>& runs, std::optional<double> target);

/// A row per run, at most 100 columns, then the notes.
std::string comparison_text(const std::vector<TrainRun>& runs, const RunComparison& comparison);
Json comparison_json(const std::vector<TrainRun>& runs, const RunComparison& comparison);

/// "1.23 MB".
std::string bytes_text(double bytes);

}  // namespace gradpress::cli
