// `gradpress bench sync`: whole steps of a message, beside the raw all-reduce of its gradients.
#pragma once

#include <CLI/App.hpp>

namespace gradpress::cli {

void add_bench_sync(CLI::App& bench, int& exit_code);

}  // namespace gradpress::cli
