// What `gradpress replay` says of a run: figures, tables, a page and a trace, predicted beside
// measured.
#pragma once

#include <gradpress/status.h>

#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "base/json.h"
#include "engine/program.h"
#include "plan/timeline.h"
#include "plan/trace.h"
#include "replayer.h"

namespace gradpress::cli {

/// What is played, and what was predicted of it where there is a cluster to predict on.
struct Piece {
  plan::Trace trace = {};
  engine::Program program = {};
  std::optional<plan::Timeline> predicted = {};
  double predicted_us = 0.0;
  std::string strategy = {};
  std::string codec = {};
  bool alternates = false;  ///< two kinds of steps take turns
};

/// Where the figures go beside the terminal; empty: nowhere.
struct ReplayFiles {
  std::string json = {};
  std::string html = {};
  std::string perfetto = {};
};

/// The steps' times, ascending. Where two kinds of steps take turns, the means of neighbours: the
/// median of single steps would be one kind's alone.
std::vector<double> sorted_times(const Replay& replay, bool alternates);

/// Prints and writes. Errors: kInvalidArgument when a file cannot be written.
Status report_replay(const ReplayFiles& files, const BackendWorld& world, const Piece& piece,
                     const Replay& replay);

}  // namespace gradpress::cli
