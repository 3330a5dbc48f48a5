// A training run, as `gradpress train --json` leaves it (docs/reports.md).
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gradpress::cli {

struct TrainPoint {
  std::uint64_t step = 0;
  double seconds = 0.0;                     ///< of training, up to here
  std::optional<double> loss = {};          ///< none where it was not finite
  std::optional<double> metric_value = {};  ///< none where nothing was evaluated
};

/// An interval on a lane of one step.
struct TrainSpan {
  std::string lane, action, tensor;
  double start_us = 0.0;
  double end_us = 0.0;
};

struct TrainRun {
  std::string file;
  std::string name;  ///< what tells it from the other runs; see name_runs
  std::uint64_t steps = 0;
  double step_ms = 0.0;
  std::string metric;
  std::optional<double> metric_value = {};  ///< of the last evaluation
  std::vector<TrainPoint> history;          ///< steps never fall
  double wire_bytes_per_step = 0.0;

  // What a file may leave out. Texts are then empty.
  std::optional<double> exposed_ms = {};
  std::string plan;
  std::vector<TrainSpan> spans;
  /// model, data, workers, backend, link, codec, seed, batch, as texts; of those the file has.
  std::vector<std::pair<std::string, std::string>> setting;
  std::string machine, date, command;

  /// The setting of that name, or "".
  std::string set(const std::string& key) const;
};

/// Whether less of the metric is better: so of a loss and of the perplexity.
bool less_is_better(const std::string& metric);

/// Errors: kInvalidArgument, with the file and the JSON path.
Result<TrainRun> read_train_run(const std::string& file);

/// Names each run by its codec and by the settings in which the runs differ; by its file where that
/// leaves two alike.
void name_runs(std::vector<TrainRun>& runs);

}  // namespace gradpress::cli
