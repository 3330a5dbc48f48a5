// One file per verb; main.cc knows them by these functions alone.
#pragma once

#include <CLI/App.hpp>

namespace gradpress::cli {

/// What every verb ends with: 0 ok, 1 failed, 2 wrong usage or input, 3 a peer was lost.
enum ExitCode : int { kSuccess = 0, kFailed = 1, kUsage = 2, kPeerLost = 3 };

/// Each adds its sub-command to `app`; when that is the one called, it runs and leaves its result
/// in `exit_code`.
void add_bench(CLI::App& app, int& exit_code);
void add_codecs(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_launch(CLI::App& app, int& exit_code);
void add_options(CLI::App& app, int& exit_code);
void add_plan(CLI::App& app, int& exit_code);
void add_profile(CLI::App& app, int& exit_code);
void add_replay(CLI::App& app, int& exit_code);
void add_report(CLI::App& app, int& exit_code);
void add_simulate(CLI::App& app, int& exit_code);
void add_train(CLI::App& app, int& exit_code);

}  // namespace gradpress::cli
