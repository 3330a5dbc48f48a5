// What a run leaves behind, and its file.
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "settings.h"

namespace gradpress::trainer {

struct HistoryPoint {
  std::int64_t step = 0;
  double seconds = 0.0;  ///< spent in steps so far; evaluation and saving do not count
  double loss = 0.0;     ///< mean over the workers and over the steps since the point before
  std::optional<double> metric_value = {};
};

struct RecordedSpan {
  std::string lane = {};
  std::string action = {};
  std::string tensor = {};
  double start_us = 0.0;
  double end_us = 0.0;
};

/// As rank 0 saw it; equal on all ranks but for times and this rank's bytes.
struct Record {
  std::int64_t steps = 0;   ///< done, those before a resume included
  double step_ms = 0.0;     ///< median of the later half of the steps
  double exposed_ms = 0.0;  ///< the same of the time spent waiting for gradients
  std::string metric = {};  ///< "accuracy" (per cent, more is better) or "perplexity" (less is)
  std::optional<double> metric_value = {};  ///< of the last evaluation
  std::optional<double> best_value = {};
  std::vector<HistoryPoint> history = {};
  double wire_bytes_per_step = 0.0;  ///< sent by rank 0, mean of the later half of the steps
  double wire_bytes_total = 0.0;
  std::uint64_t parameters = 0;
  std::uint64_t skipped_steps = 0;  ///< a gradient was not finite: no update
  bool interrupted = false;
  std::optional<double> seconds_to_target = {};  ///< of --time-to
  std::string plan = {};                         ///< the engine's summary
  std::string running = {};                      ///< what the engine ended with
  std::vector<RecordedSpan> spans = {};          ///< of the last step
  std::uint64_t fingerprint = 0;                 ///< of the parameters' bits at the end
  unsigned workers = 0;
  std::int64_t warm_steps = 0;    ///< before the codec itself runs
  double compressed_share = 0.0;  ///< of the elements: in tensors with a codec at the end
};

/// Whether `a` is better than `b`.
bool is_better(const std::string& metric, double a, double b);

/// Errors: kInvalidArgument when the file cannot be written.
Status write_record(const std::string& file, const Settings& settings, const Record& record);

/// The CPU's own name and its number of cores.
std::string machine_text();

}  // namespace gradpress::trainer
