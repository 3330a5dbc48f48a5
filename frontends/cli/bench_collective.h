// `gradpress bench collective`: what a backend's collectives take, beside what their links allow.
#pragma once

#include <CLI/App.hpp>

namespace gradpress::cli {

void add_bench_collective(CLI::App& bench, int& exit_code);

}  // namespace gradpress::cli
