// The command line of gradpress-train.
#pragma once

#include <gradpress/status.h>

#include <optional>
#include <string>

#include "settings.h"

namespace gradpress::trainer {

struct CommandLine {
  Settings settings = {};
  bool demo = false;
  std::string demo_folder = ".";
};

/// Reads the arguments. Prints what was asked for (--help, --version) or what is wrong, and gives
/// the exit code, where there is nothing to run.
struct ParsedLine {
  std::optional<CommandLine> line = {};
  int exit_code = 0;
};
ParsedLine parse_command_line(int argc, char** argv);

}  // namespace gradpress::trainer
