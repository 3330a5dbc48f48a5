// `gradpress bench codec`: what each codec costs, in copies of the gradient.
#pragma once

#include <CLI/App.hpp>

namespace gradpress::cli {

void add_bench_codec(CLI::App& bench, int& exit_code);

}  // namespace gradpress::cli
