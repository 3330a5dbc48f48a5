// N processes that are one job: started together, watched, and ended together.
#pragma once

#include <gradpress/status.h>
#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace gradpress::cli {

using Environment = std::vector<std::pair<std::string, std::string>>;

struct JobOptions {
  std::vector<std::string> command = {};
  /// What each rank finds in its environment, beyond what this process has: one entry per rank.
  std::vector<Environment> variables = {};
  /// How long the others may go on after one failed, so that they find out and say so themselves.
  std::chrono::milliseconds grace = std::chrono::seconds(60);
  /// How long a process that was told to end may take.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
  /// Puts "[RANK] " in front of every line.
  bool prefix = false;
};

/// How a job ended.
struct JobEnd {
  int exit_code = 0;  ///< 0, or that of the first that failed: its own, or 128 + signal
  unsigned rank = 0;  ///< of the first that failed
  std::string cause =
      {};  ///< "ended with exit code 3", "was killed by signal 9 (Killed)"; or empty
};

/// Runs a job to its end on the calling thread: each process in a group of its own, with /dev/null
/// as its input, its output passed on line by line. INT, TERM and HUP go to all of them, a second
/// one kills; when one has failed, the others are told to end after the grace, and killed after the
/// patience. What a process leaves behind in its group when it ends is killed. When this process
/// is killed, the kernel kills the workers.
///
/// Requires: called once, and no other thread that takes these signals.
/// Errors:   kInvalidArgument when the command cannot be started (then nothing of it runs on);
///           kInternal when the system has no room for processes or pipes.
Result<JobEnd> run_job(const JobOptions& options);

}  // namespace gradpress::cli
