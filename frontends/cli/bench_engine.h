// `gradpress bench engine`: what the engine adds to a plain all-reduce of the same bytes.
#pragma once

#include <CLI/App.hpp>

namespace gradpress::cli {

void add_bench_engine(CLI::App& bench, int& exit_code);

}  // namespace gradpress::cli
