#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "base/json.h"
#include "plan/tree.h"
#include "plan_input.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

struct Arguments {
  std::string places = "device,host";
  std::string forbid;
  std::string tree = "paper";
  unsigned max_encodes = plan::Option::kMaxActions;
  std::string json;
  bool list = false;
};

Result<plan::Restrictions> restrictions_of(const Arguments& arguments) {
  plan::Restrictions restrictions{.device = false, .host = false};
  for (const std::string& word : split(arguments.places)) {
    const auto place = plan::parse_place(word);
    if (!place) return tl::unexpected(place.error());
    (*place == plan::Place::kDevice ? restrictions.device : restrictions.host) = true;
  }
  if (arguments.tree != "paper" && arguments.tree != "extended") {
    return fail(Code::kInvalidArgument, "--tree: wanted paper or extended, got ", arguments.tree);
  }
  restrictions.extended = arguments.tree == "extended";
  restrictions.max_encodes = arguments.max_encodes;
  for (const std::string& word : split(arguments.forbid)) {
    if (const Status status = plan::forbid(restrictions, word); !status) {
      return tl::unexpected(status);
    }
  }
  return restrictions;
}

int run(const Arguments& arguments) {
  const auto restrictions = restrictions_of(arguments);
  if (!restrictions) return report_wrong("options", restrictions.error());
  const auto options = plan::OptionTree(*restrictions).options();
  const plan::SubtreeCounts counts = plan::count_subtrees(*restrictions);
  std::size_t raw = 0;
  for (const plan::Option& option : options) raw += option.is_raw() ? 1 : 0;
  std::printf("%zu options, %zu of them raw\n", options.size(), raw);
  Json subtrees = {{"T1", counts.t1},     {"T2", counts.t2},        {"T3", counts.t3},
                   {"T4", counts.t4},     {"T5", counts.t5},        {"Flat", counts.flat},
                   {"Hier", counts.hier}, {"Rounds", counts.rounds}};
  for (const auto& [name, count] : subtrees.items()) {
    std::printf("  %-6s %6llu\n", name.c_str(), count.get<unsigned long long>());
  }
  if (arguments.list) {
    for (const plan::Option& option : options) std::printf("%s\n", plan::to_text(option).c_str());
  }
  if (arguments.json.empty()) return kSuccess;
  Json json = {{"total", options.size()}, {"raw", raw}, {"subtrees", std::move(subtrees)}};
  json["options"] = Json::array();
  for (const plan::Option& option : options) json["options"].push_back(plan::to_text(option));
  const Status written = write_json(arguments.json, json);
  return written ? kSuccess : report_wrong("options", written);
}

}  // namespace

void add_options(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("options", "the decision tree: counts and list");
  verb->add_option("--places", arguments->places, "where codecs may run")->capture_default_str();
  verb->add_option("--forbid", arguments->forbid, "leave out links, collectives: intra,alltoall");
  verb->add_option("--max-encodes", arguments->max_encodes, "at most so many encodes per tensor");
  verb->add_option("--tree", arguments->tree, "paper or extended")->capture_default_str();
  verb->add_flag("--list", arguments->list, "print every option");
  verb->add_option("--json", arguments->json, "write counts and options to this file");
  verb->footer("Example: gradpress options --places device --forbid flat --list");
  verb->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace gradpress::cli
