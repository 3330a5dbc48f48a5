#include "bench_codec.h"
#include "bench_collective.h"
#include "bench_engine.h"
#include "bench_sync.h"
#include "verbs.h"

namespace gradpress::cli {

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* bench =
      app.add_subcommand("bench", "measures this machine: codecs, collectives, whole steps");
  bench->require_subcommand(1);
  add_bench_codec(*bench, exit_code);
  add_bench_collective(*bench, exit_code);
  add_bench_engine(*bench, exit_code);
  add_bench_sync(*bench, exit_code);
}

}  // namespace gradpress::cli
