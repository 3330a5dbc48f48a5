#include <gradpress/version.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "verbs.h"

namespace gradpress::cli {

namespace {

int run(int argc, char** argv) {
  CLI::App app("gradpress: gradient compression for data-parallel training", "gradpress");
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);
  int exit_code = kSuccess;
  add_bench(app, exit_code);
  add_codecs(app, exit_code);
  add_doctor(app, exit_code);
  add_launch(app, exit_code);
  add_options(app, exit_code);
  add_plan(app, exit_code);
  add_profile(app, exit_code);
  add_replay(app, exit_code);
  add_report(app, exit_code);
  add_simulate(app, exit_code);
  add_train(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11 numbers its errors from 100 on; ours are all "wrong usage". Help and version are no
    // errors.
    return app.exit(error) == 0 ? kSuccess : kUsage;
  }
  return exit_code;
}

}  // namespace

}  // namespace gradpress::cli

int main(int argc, char** argv) {
  try {
    return gradpress::cli::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradpress: internal error: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "gradpress: internal error of an unknown kind\n");
  }
  return gradpress::cli::kFailed;
}
