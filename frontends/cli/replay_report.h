// What `gradpress replay` says of a run: figures, tables, a page and a trace, predicted beside
// measured.
#pragma once

#include <gradpress/status.h>

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
  engine::Programs programs = {};
  std::vector<plan::Timeline> predicted = {};  ///< by kind of step; none: nothing to predict on
  double predicted_us = 0.0;                   ///< the mean over both kinds
  std::string strategy = {};
  std::string codec = {};
  bool alternates = false;  ///< two kinds of steps take turns: ACP-SGD's P and Q

  const engine::Program& program(unsigned kind) const {
    return kind == 1 && programs.second ? *programs.second : programs.first;
  }
  /// None: nothing was predicted.
  const plan::Timeline* timeline(unsigned kind) const {
    return predicted.empty() ? nullptr : &predicted[kind];
  }
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
