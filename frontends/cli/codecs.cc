#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "plan_input.h"
#include "spec/facts.h"
#include "spec/facts_json.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

int run(const std::string& json) {
  for (const codec::Facts& facts : codec::all_facts()) {
    std::printf("%.*s\n    %.*s\n", static_cast<int>(facts.usage.size()), facts.usage.data(),
                static_cast<int>(facts.about.size()), facts.about.data());
  }
  if (json.empty()) return kSuccess;
  const Status written = write_json(json, codec::list_of_codecs());
  return written ? kSuccess : report_wrong("codecs", written);
}

}  // namespace

void add_codecs(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("codecs", "every codec: how it is written, what it does");
  verb->add_option("--json", *json, "write names, keys and properties to this file");
  verb->footer("Example: gradpress codecs --json codecs.json");
  verb->callback([json, &exit_code] { exit_code = run(*json); });
}

}  // namespace gradpress::cli
