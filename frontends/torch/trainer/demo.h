// What a newcomer runs: one model trained twice on a slow link, without and with compression.
#pragma once

#include <gradpress/status.h>

#include <atomic>
#include <string>
#include <vector>

#include "record.h"

namespace gradpress::trainer {

/// Trains uncompressed, then with `auto`; prints a table; leaves both runs and report.html in
/// `folder` and names the page on the last line.
/// Errors: train()'s; kInvalidArgument when the folder cannot be written or the page not be made.
Status run_demo(const std::string& folder, const std::atomic<bool>& stop);

struct NamedRecord {
  std::string name = {};
  Record record = {};
};

/// Seconds until the metric was at least as good as `target`; none if it never was.
std::optional<double> seconds_to(const Record& record, double target);
/// What every run reached: the worst of their best values. None without evaluations.
std::optional<double> common_target(const std::vector<NamedRecord>& runs);
/// A row per run, speed-ups against the first. At most 100 columns.
std::string comparison_table(const std::vector<NamedRecord>& runs);

}  // namespace gradpress::trainer
