// The page of `gradpress report RUN…`: one file, no network, readable in any browser.
#pragma once

#include <string>
#include <vector>

#include "run_comparison.h"
#include "train_run.h"

namespace gradpress::cli {

/// Curves of loss and metric over time and over steps, bytes per step, one step's timeline per run,
/// the comparison as a table, the plans. What no run has is left out.
/// Requires: named runs, and their comparison.
std::string runs_page(const std::vector<TrainRun>& runs, const RunComparison& comparison);

}  // namespace gradpress::cli
