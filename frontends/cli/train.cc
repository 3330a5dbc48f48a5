#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "verbs.h"

namespace gradpress::cli {

namespace {

constexpr std::string_view kProgram = "gradpress-train";

/// Where the program may be: beside this one, in libexec of the same tree, where the shell finds
/// it.
std::vector<std::string> places() {
  std::vector<std::string> found;
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const auto folder = self.parent_path();
    found.push_back((folder / kProgram).string());
    found.push_back((folder.parent_path() / "libexec" / "gradpress" / kProgram).string());
  }
  found.emplace_back(kProgram);
  return found;
}

/// Returns only when there is no such program.
void become_trainer(std::vector<std::string> words) {
  for (const std::string& place : places()) {
    words.front() = place;
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
  }
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("train", "train a model with compressed gradients (runs gradpress-train)");
  // Its flags are the trainer's own, --help included.
  verb->set_help_flag();
  verb->prefix_command();
  verb->callback([verb, &exit_code] {
    std::vector<std::string> words = {std::string(kProgram)};
    for (const std::string& word : verb->remaining()) words.push_back(word);
    std::fflush(nullptr);
    become_trainer(std::move(words));
    std::fprintf(
        stderr,
        "gradpress train: no program gradpress-train beside this one, in libexec/gradpress "
        "or in PATH; install libtorch-dev (Debian) and build gradpress from source\n");
    exit_code = kFailed;
  });
}

}  // namespace gradpress::cli
