#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>

#include "page.h"
#include "plan/plan_file.h"
#include "plan/timeline.h"
#include "plan_input.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

struct Arguments {
  PlanInput input;
  std::string plan_file;
  std::string machines, workers, gbps, latency, codec_speed;
  std::string strategies = "best,none,hipress,byteps-compress";
  std::string json, html;
};

/// "1..1024" doubles from 1 to 1024; "1,4,10" is taken as it is.
Result<std::vector<double>> parse_range(const std::string& name, const std::string& text) {
  std::vector<double> values;
  const auto wrong = [&] {
    return fail(Code::kInvalidArgument, "--", name,
                ": wanted LOW..HIGH or a list of numbers above 0, got \"", text, "\"");
  };
  const auto number = [](const std::string& word) {
    double value = NAN;
    return CLI::detail::lexical_cast(word, value) ? value : NAN;
  };
  const std::size_t dots = text.find("..");
  if (dots == std::string::npos) {
    for (const std::string& word : split(text)) values.push_back(number(word));
  } else {
    const double low = number(text.substr(0, dots));
    const double high = number(text.substr(dots + 2));
    if (!(low > 0.0 && high >= low && high / low <= 1e9)) return wrong();
    for (double value = low; value <= high; value *= 2.0) values.push_back(value);
  }
  if (values.empty()) return wrong();
  for (const double value : values) {
    if (!(value > 0.0) || !std::isfinite(value)) return wrong();
  }
  return values;
}

/// What is swept, and how a value changes a cluster.
struct Sweep {
  std::string name;
  std::vector<double> values;
  Status (*apply)(plan::Cluster& cluster, double value);
};

Status set_count(std::uint32_t& count, const char* what, double most, double value) {
  if (value != std::floor(value) || value > most) {
    return Status::error(Code::kInvalidArgument, "--", what, ": wanted whole numbers up to ", most,
                         ", got ", value);
  }
  count = static_cast<std::uint32_t>(value);
  return {};
}

Status apply_machines(plan::Cluster& cluster, double value) {
  return set_count(cluster.topology.machines, "machines", 1e6, value);
}
Status apply_workers(plan::Cluster& cluster, double value) {
  return set_count(cluster.topology.workers, "workers", 1024, value);
}
Status apply_gbps(plan::Cluster& cluster, double value) {
  cluster.inter.link.gbps = value;
  return {};
}
Status apply_latency(plan::Cluster& cluster, double value) {
  cluster.inter.link.latency_us = value;
  return {};
}
Status apply_codec_speed(plan::Cluster& cluster, double value) {
  for (auto& [name, curves] : cluster.codec_costs) {
    for (auto& curve : curves) {
      if (curve) curve = curve->scaled(1.0 / value);
    }
  }
  return {};
}

/// None, one or two axes.
Result<std::vector<Sweep>> chosen_sweeps(const Arguments& arguments) {
  struct Known {
    const char* name;
    const std::string& text;
    Status (*apply)(plan::Cluster&, double);
  };
  const std::array<Known, 5> known = {{{"machines", arguments.machines, apply_machines},
                                       {"workers", arguments.workers, apply_workers},
                                       {"gbps", arguments.gbps, apply_gbps},
                                       {"latency", arguments.latency, apply_latency},
                                       {"codec-speed", arguments.codec_speed, apply_codec_speed}}};
  std::vector<Sweep> sweeps;
  for (const Known& axis : known) {
    if (axis.text.empty()) continue;
    if (sweeps.size() == 2) {
      return fail(Code::kInvalidArgument, "wanted at most two axes, got --", sweeps[0].name, ", --",
                  sweeps[1].name, " and --", axis.name);
    }
    auto values = parse_range(axis.name, axis.text);
    if (!values) return tl::unexpected(values.error());
    sweeps.push_back({axis.name, std::move(*values), axis.apply});
  }
  return sweeps;
}

/// The iteration under each strategy, and under the plan of a file where one is given.
Result<Json> point_of(const Loaded& loaded, const Arguments& arguments,
                      const std::optional<plan::PlanFile>& plan) {
  Json values = Json::object();
  if (plan) {
    values["plan"] = plan::predict_us({loaded.trace, loaded.cluster, plan->codecs}, plan->strategy);
  }
  for (const std::string& name : split(arguments.strategies)) {
    if (loaded.codecs.empty() && name != "none") continue;
    plan::PlanOptions options = loaded.options;
    options.strategy = name;
    const auto made = plan::make_plan(loaded.setting(), options);
    if (!made) return tl::unexpected(made.error());
    values[name] = made->iteration_us;
  }
  if (values.empty()) {
    return fail(Code::kInvalidArgument,
                "nothing to compare: give --codec, --plan or --strategies none");
  }
  // The first of equals in the order given: a strategy that only ties does not get a region.
  std::string best;
  for (const auto& [name, us] : values.items()) {
    const bool shorter = best.empty() || us.get<double>() < values[best].get<double>() * (1 - 1e-9);
    if (shorter) best = name;
  }
  return Json{{"values", std::move(values)}, {"best", best}};
}

std::string short_number(double value) {
  std::string text;
  detail::append_number(text, value);
  return text;
}

/// "machines 8, gbps 25: best", then every strategy's time, at most 100 columns.
void print_point(const std::string& where, const Json& point) {
  std::string line = where + ": " + point["best"].get<std::string>();
  for (const auto& [name, us] : point["values"].items()) {
    char text[64];
    (void)std::snprintf(text, sizeof text, "  %.40s %.3f ms", name.c_str(),
                        us.get<double>() / 1000.0);
    if (line.size() + std::string_view(text).size() > 100) {
      std::printf("%s\n", line.c_str());
      line = "   ";
    }
    line += text;
  }
  std::printf("%s\n", line.c_str());
}

/// A letter for each strategy, a row for each value of the second axis, the largest on top.
void print_regions(const Json& data) {
  const Json& points = data["points"];
  const std::size_t columns = data["xs"].size();
  std::map<std::string, char> letters;
  for (const Json& point : points) letters.try_emplace(point["best"].get<std::string>(), '?');
  char next = 'A';
  for (auto& [name, letter] : letters) letter = next++;
  std::printf("\nfastest by %s (down) and %s (across):\n", data["y"].get<std::string>().c_str(),
              data["x"].get<std::string>().c_str());
  for (std::size_t row = data["ys"].size(); row-- > 0;) {
    std::printf("%12s  ", short_number(data["ys"][row].get<double>()).c_str());
    for (std::size_t column = 0; column < columns && column < 40; ++column) {
      const std::string best = points[row * columns + column]["best"].get<std::string>();
      std::printf("%c ", letters[best]);
    }
    std::printf("\n");
  }
  for (const auto& [name, letter] : letters) std::printf("%12c  %s\n", letter, name.c_str());
}

int run(const Arguments& arguments) {
  const auto loaded = load(arguments.input);
  if (!loaded) return report_wrong("simulate", loaded.error());
  auto sweeps = chosen_sweeps(arguments);
  if (!sweeps) return report_wrong("simulate", sweeps.error());
  std::optional<plan::PlanFile> plan;
  if (!arguments.plan_file.empty()) {
    // For the cluster as it is in its file; elsewhere the same options are priced anew.
    auto read = plan::read_plan(arguments.plan_file, loaded->trace, loaded->cluster);
    if (!read) return report_wrong("simulate", read.error());
    plan = std::move(*read);
  }
  const bool two_axes = sweeps->size() == 2;
  if (sweeps->empty()) {
    const auto machines = static_cast<double>(loaded->cluster.topology.machines);
    sweeps->push_back({"machines", {machines}, apply_machines});
  }
  const Sweep& across = sweeps->front();
  const Sweep down = two_axes ? sweeps->back() : Sweep{"", {0.0}, nullptr};
  Json data = {{"title", loaded->trace.model + " on " + loaded->cluster.name},
               {"x", across.name},
               {"log", across.values.size() > 2},
               {"points", Json::array()}};
  if (two_axes) {
    data["xs"] = across.values;
    data["y"] = down.name;
    data["ys"] = down.values;
  }
  for (const double y : down.values) {
    for (const double x : across.values) {
      Loaded changed = *loaded;
      Status status = across.apply(changed.cluster, x);
      if (status && two_axes) status = down.apply(changed.cluster, y);
      if (!status) return report_wrong("simulate", status);
      auto point = point_of(changed, arguments, plan);
      if (!point) return report_wrong("simulate", point.error());
      std::string where = across.name + " " + short_number(x);
      (*point)["x"] = x;
      if (two_axes) {
        where += ", " + down.name + " " + short_number(y);
        (*point)["y"] = y;
      }
      print_point(where, *point);
      data["points"].push_back(std::move(*point));
    }
  }
  if (two_axes) print_regions(data);
  Status written;
  if (!arguments.json.empty()) written = write_json(arguments.json, data);
  if (written && !arguments.html.empty()) {
    written = write_text(arguments.html, two_axes ? regions_page(data) : sweep_page(data));
  }
  return written ? kSuccess : report_wrong("simulate", written);
}

}  // namespace

void add_simulate(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("simulate", "what if: other machines, links or codecs");
  add_input(*verb, arguments->input, true);
  verb->get_option("--codec")->required(false);
  verb->add_option("--plan", arguments->plan_file, "predict this plan too");
  verb->add_option("--strategies", arguments->strategies, "to compare")->capture_default_str();
  verb->add_option("--machines", arguments->machines, "sweep: 1..1024 (doubling) or 1,8,64");
  verb->add_option("--workers", arguments->workers, "sweep: workers per machine");
  verb->add_option("--gbps", arguments->gbps, "sweep: rate of the network card");
  verb->add_option("--latency", arguments->latency, "sweep: latency between machines, µs");
  verb->add_option("--codec-speed", arguments->codec_speed, "sweep: codecs so many times as fast");
  verb->add_option("--json", arguments->json, "write the figures to this file");
  verb->add_option("--html", arguments->html, "write a plot of times, or of regions");
  verb->footer(
      "One axis gives lines, two give regions: where each strategy is the fastest.\n"
      "Example: gradpress simulate --trace t.json --cluster c.json --codec dgc:0.01 \\\n"
      "                            --machines 1..1024 --gbps 1,10,25,100 --html regions.html");
  verb->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace gradpress::cli
