#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>

#include "page.h"
#include "perfetto.h"
#include "plan/plan_file.h"
#include "plan/search/request.h"
#include "plan_input.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

struct Arguments {
  PlanInput input;
  std::string strategy = "best";
  std::string json, html, perfetto;
};

std::string shortened(const std::string& text, std::size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 3) + "...";
}

/// A sentence of any length, broken between words.
std::string wrapped(const std::string& sentence) {
  constexpr std::size_t kMostWidth = 89;  // leaves room for a word before it
  std::string text;
  std::size_t width = 0;
  for (const std::string& word : CLI::detail::split(sentence, ' ')) {
    if (width > 0 && width + 1 + word.size() > kMostWidth) {
      text += '\n';
      width = 0;
    }
    if (width > 0) text += ' ';
    width += word.size() + (width > 0 ? 1 : 0);
    text += word;
  }
  return text;
}

void print_plan(const Loaded& loaded, const plan::Plan& plan, double planning_us) {
  const plan::Timeline& timeline = plan.timeline;
  std::printf("%s on %s (%u machines x %u workers), strategy %s\n", loaded.trace.model.c_str(),
              loaded.cluster.name.c_str(), loaded.cluster.topology.machines,
              loaded.cluster.topology.workers, plan.strategy_name.c_str());
  if (loaded.trace.source.rfind("estimate", 0) == 0) {
    std::printf("  times are an %s\n", loaded.trace.source.c_str());
  }
  const auto line = [](const char* what, double us) {
    std::printf("  %-26s %12.3f ms\n", what, us / 1000.0);
  };
  line("iteration", plan.iteration_us);
  line("without a codec", plan.raw_us);
  line("no plan can be below", plan.bound_us);
  line("backward", timeline.backward_us);
  line("exposed communication", timeline.exposed_comm_us);
  line("exposed codec work", timeline.exposed_codec_us);
  line("planned in", planning_us);
  for (const plan::Lane lane : plan::kAllLanes) {
    double idle = 0.0;
    std::size_t bubbles = 0;
    for (const plan::Bubble& bubble : timeline.bubbles) {
      if (bubble.lane != lane) continue;
      idle += bubble.end_us - bubble.start_us;
      ++bubbles;
    }
    std::printf("  lane %-8s busy %12.3f ms", std::string(plan::to_text(lane)).c_str(),
                timeline.busy_us[static_cast<std::size_t>(lane)] / 1000.0);
    if (bubbles > 0) std::printf(", %zu bubbles of %.3f ms", bubbles, idle / 1000.0);
    std::printf("\n");
  }
  std::map<plan::Lane, double> critical;
  for (const std::uint32_t index : timeline.critical_path) {
    critical[timeline.spans[index].lane] +=
        timeline.spans[index].end_us - timeline.spans[index].start_us;
  }
  std::printf("  critical path:");
  for (const auto& [lane, us] : critical) {
    std::printf(" %s %.3f ms", std::string(plan::to_text(lane)).c_str(), us / 1000.0);
  }
  std::printf("\n\n%-34s %11s %-13s %s\n", "tensor", "elements", "codec", "option");
  // The largest ones; --json has all.
  std::vector<std::size_t> order(loaded.trace.tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return loaded.trace.tensors[a].elements > loaded.trace.tensors[b].elements;
  });
  constexpr std::size_t kShown = 10;
  for (std::size_t i = 0; i < std::min(kShown, order.size()); ++i) {
    const plan::Tensor& tensor = loaded.trace.tensors[order[i]];
    const plan::Choice& choice = plan.strategy.choices[order[i]];
    const std::string codec =
        choice.option.is_raw() ? "none" : codec::to_text(loaded.codecs[choice.codec]);
    std::printf("%-34s %11llu %-13s\n", shortened(tensor.name, 34).c_str(),
                static_cast<unsigned long long>(tensor.elements), codec.c_str());
    // An option can be longer than a line: broken between actions.
    std::string text;
    for (const plan::Action& action : choice.option.actions()) {
      std::string word = (text.empty() ? "    " : " > ") + plan::to_text(action);
      if (text.size() + word.size() > 98) {
        std::printf("%s\n", text.c_str());
        text = "   ";
      }
      text += word;
    }
    std::printf("%s\n", text.c_str());
  }
  if (order.size() > kShown) std::printf("and %zu smaller ones\n", order.size() - kShown);
  std::printf("\n%s\n", wrapped(plan.verdict).c_str());
  for (const std::string& warning : plan.warnings) {
    std::printf("\nwarning: %s\n", wrapped(warning).c_str());
  }
}

Json page_data(const Loaded& loaded, const plan::Plan& plan, const Json& plan_json) {
  Json data = {
      {"title", loaded.trace.model + " on " + loaded.cluster.name + ": " + plan.strategy_name},
      {"verdict", plan.verdict}};
  for (const plan::Lane lane : plan::kAllLanes) data["lanes"].push_back(plan::to_text(lane));
  data["spans"] = Json::array();
  for (const plan::Span& span : plan.timeline.spans) {
    data["spans"].push_back({static_cast<int>(span.lane), span_kind(span.kind), span.start_us,
                             span.end_us, span.tensor, span_action(plan.strategy, span)});
  }
  data["tensors"] = plan_json["tensors"];
  data["compare"] = Json::array();
  data["compare"].push_back({{"name", "this plan"}, {"iteration_us", plan.iteration_us}});
  for (const plan::NamedStrategy& named : plan::strategies()) {
    if (named.name == "optimal") continue;
    plan::PlanOptions options = loaded.options;
    options.strategy = named.name;
    options.fusion = plan::Fusion::kNone;
    const auto other = plan::make_plan(loaded.setting(), options);
    if (!other) continue;
    data["compare"].push_back({{"name", named.name}, {"iteration_us", other->iteration_us}});
  }
  return data;
}

/// CPU time of this thread: what planning costs on a machine that has other things to do.
double thread_cpu_us() {
  timespec now{};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

int run(const Arguments& arguments) {
  auto loaded = load(arguments.input);
  if (!loaded) return report_wrong("plan", loaded.error());
  loaded->options.strategy = arguments.strategy;
  const auto start = std::chrono::steady_clock::now();
  const double cpu_start_us = thread_cpu_us();
  const auto plan = plan::make_plan(loaded->setting(), loaded->options);
  const double cpu_us = thread_cpu_us() - cpu_start_us;
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  if (!plan) return report_wrong("plan", plan.error());
  print_plan(*loaded, *plan, took.count());
  Json json = plan::to_json(loaded->setting(), *plan);
  json["planning_us"] = took.count();
  json["planning_cpu_us"] = cpu_us;
  Status written;
  if (!arguments.json.empty()) written = write_json(arguments.json, json);
  if (written && !arguments.perfetto.empty()) {
    written = write_json(arguments.perfetto,
                         perfetto_json(loaded->setting(), plan->strategy, plan->timeline));
  }
  if (written && !arguments.html.empty()) {
    written = write_text(arguments.html, plan_page(page_data(*loaded, *plan, json)));
  }
  return written ? kSuccess : report_wrong("plan", written);
}

}  // namespace

void add_plan(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("plan", "decides for every tensor how to synchronise it");
  add_input(*verb, arguments->input, true);
  verb->add_option("--strategy", arguments->strategy, "best, espresso, none, hipress, …")
      ->capture_default_str();
  verb->add_option("--json", arguments->json, "write the plan to this file");
  verb->add_option("--html", arguments->html, "write a page with timeline and comparison");
  verb->add_option("--perfetto", arguments->perfetto, "write a trace for ui.perfetto.dev");
  verb->footer(
      "Example: gradpress plan --model bert-base --tflops 15 --cluster c.json \\\n"
      "                        --codec dgc:0.01,efsign --json plan.json");
  verb->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace gradpress::cli
