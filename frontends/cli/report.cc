#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/json.h"
#include "page.h"
#include "plan/search/best.h"
#include "plan/search/espresso.h"
#include "plan/timeline.h"
#include "plan_input.h"
#include "run_comparison.h"
#include "run_page.h"
#include "train_run.h"
#include "verbs.h"

namespace gradpress::cli {

namespace {

struct Arguments {
  std::vector<std::string> runs;
  std::optional<double> target;
  std::string html;
  std::string table;
  std::string traces, clusters;
  std::string codecs = "randomk:0.01,dgc:0.01,efsign";
  std::string json;
};

Result<std::vector<std::string>> json_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path().string());
  }
  if (error) return fail(Code::kInvalidArgument, folder, ": ", error.message());
  if (files.empty()) return fail(Code::kInvalidArgument, folder, ": has no .json file");
  std::ranges::sort(files);
  return files;
}

struct Row {
  std::string model, cluster, codec;
  plan::SearchReport best;
  plan::EspressoReport espresso;
  std::vector<std::pair<std::string, double>> others;

  /// How much longer a strategy's iteration is, as a share of best's.
  double excess(std::string_view name) const {
    for (const auto& [other, us] : others) {
      if (other == name) return us / best.value_us - 1.0;
    }
    return 0.0;
  }
};

Result<Row> compare(const plan::Trace& trace, const plan::Cluster& cluster,
                    const codec::Spec& spec) {
  const std::vector<codec::Spec> codecs = {spec};
  const plan::Request request{{trace, cluster, codecs}, {}};
  Row row{trace.model, cluster.name, codec::to_text(spec), {}, {}, {}};
  const auto singles = plan::Buckets::singles(trace.tensors.size());
  const auto best = plan::search_best(request, singles, &row.best);
  if (!best) return tl::unexpected(best.error());
  for (const plan::NamedStrategy& named : plan::strategies()) {
    if (named.name == "best" || named.name == "optimal") continue;
    const auto strategy = named.name == "espresso" ? plan::search_espresso(request, &row.espresso)
                                                   : named.plan(request);
    if (!strategy) return tl::unexpected(strategy.error());
    row.others.emplace_back(named.name, plan::predict_us(request.setting, *strategy));
  }
  return row;
}

void print_rows(const std::vector<Row>& rows) {
  std::printf("%-10s %-12s %-13s %9s %7s %9s %8s  %s\n", "model", "cluster", "codec", "best ms",
              "bound", "espresso", "offload", "closest other");
  double distance = 0.0;
  double gain = 0.0;
  std::size_t beaten = 0;
  for (const Row& row : rows) {
    const auto closest =
        std::ranges::min_element(row.others, {}, [](const auto& other) { return other.second; });
    const double best = row.best.value_us;
    const double espresso = row.excess("espresso");
    std::printf("%-10s %-12s %-13s %9.3f %6.2f%% %+8.2f%% %8zu  %s %+.2f%%\n", row.model.c_str(),
                row.cluster.c_str(), row.codec.c_str(), best / 1000.0,
                100.0 * (best / row.best.bound_us - 1.0), 100.0 * espresso,
                row.espresso.offload_tensors, closest->first.c_str(),
                100.0 * (closest->second / best - 1.0));
    distance += best / row.best.bound_us - 1.0;
    gain += espresso;
    beaten += closest->second < best * (1.0 - 1e-9) ? 1 : 0;
  }
  const auto count = static_cast<double>(rows.size());
  std::printf(
      "\n%zu rows; best is beaten in %zu; mean distance from the bound %.2f %%; "
      "espresso +%.2f %%\n",
      rows.size(), beaten, 100.0 * distance / count, 100.0 * gain / count);
}

/// The restricted sub-trees, each under two searches.
void print_sub_trees(const std::vector<Row>& rows) {
  constexpr std::array<std::string_view, 5> kSubTrees = {
      "device-only", "host-only", "inter-allgather", "inter-alltoall", "alltoall-alltoall"};
  std::printf(
      "\nSub-trees: how much longer the iteration is than best's on the whole tree, in percent,\n"
      "with best's search in the sub-tree / with Espresso's algorithm in it (espresso@...)\n\n");
  std::printf("%-10s %-12s %-13s", "model", "cluster", "codec");
  for (const std::string_view name : kSubTrees) std::printf(" %17s", std::string(name).c_str());
  std::printf("\n");
  std::array<std::array<double, 2>, kSubTrees.size()> sums{};
  for (const Row& row : rows) {
    std::printf("%-10s %-12s %-13s", row.model.c_str(), row.cluster.c_str(), row.codec.c_str());
    for (std::size_t i = 0; i < kSubTrees.size(); ++i) {
      const double best = 100.0 * row.excess(kSubTrees[i]);
      const double espresso = 100.0 * row.excess(std::string("espresso@").append(kSubTrees[i]));
      std::printf(" %8.1f /%7.1f", best, espresso);
      sums[i][0] += best;
      sums[i][1] += espresso;
    }
    std::printf("\n");
  }
  std::printf("%-37s", "mean");
  const auto count = static_cast<double>(rows.size());
  for (const auto& [best, espresso] : sums) {
    std::printf(" %8.1f /%7.1f", best / count, espresso / count);
  }
  std::printf("\n");
}

int run_comparison(const Arguments& arguments) {
  std::vector<TrainRun> runs;
  for (const std::string& file : arguments.runs) {
    auto run = read_train_run(file);
    if (!run) return report_wrong("report", run.error());
    runs.push_back(std::move(*run));
  }
  name_runs(runs);
  const auto comparison = compare_runs(runs, arguments.target);
  if (!comparison) return report_wrong("report", comparison.error());
  (void)std::fputs(comparison_text(runs, *comparison).c_str(), stdout);
  if (!arguments.json.empty()) {
    const Status written = write_json(arguments.json, comparison_json(runs, *comparison));
    if (!written) return report_wrong("report", written);
  }
  if (arguments.html.empty()) return kSuccess;
  const Status written = write_text(arguments.html, runs_page(runs, *comparison));
  if (!written) return report_wrong("report", written);
  std::printf("Wrote %s\n", arguments.html.c_str());
  return kSuccess;
}

int run_table(const Arguments& arguments) {
  if (arguments.table != "strategies") {
    return report_wrong("report",
                        Status::error(Code::kInvalidArgument, "--table: wanted strategies, got \"",
                                      arguments.table, "\""));
  }
  if (arguments.traces.empty() || arguments.clusters.empty()) {
    return report_wrong("report", Status::error(Code::kInvalidArgument,
                                                "--table strategies: wanted --traces DIR "
                                                "and --clusters DIR, folders of .json files"));
  }
  const auto traces = json_files(arguments.traces);
  if (!traces) return report_wrong("report", traces.error());
  const auto clusters = json_files(arguments.clusters);
  if (!clusters) return report_wrong("report", clusters.error());
  const auto codecs = parse_codecs(arguments.codecs);
  if (!codecs) return report_wrong("report", codecs.error());
  std::vector<Row> rows;
  for (const std::string& cluster_file : *clusters) {
    const auto cluster = plan::read_cluster(cluster_file);
    if (!cluster) return report_wrong("report", cluster.error());
    for (const std::string& trace_file : *traces) {
      const auto trace = plan::read_trace(trace_file);
      if (!trace) return report_wrong("report", trace.error());
      for (const codec::Spec& spec : *codecs) {
        auto row = compare(*trace, *cluster, spec);
        if (!row) return report_wrong("report", row.error());
        rows.push_back(std::move(*row));
      }
    }
  }
  print_rows(rows);
  print_sub_trees(rows);
  if (arguments.json.empty()) return kSuccess;
  Json json = {{"rows", Json::array()}};
  for (const Row& row : rows) {
    Json strategies = {{"best", row.best.value_us}};
    for (const auto& [name, us] : row.others) strategies[name] = us;
    json["rows"].push_back({{"model", row.model},
                            {"cluster", row.cluster},
                            {"codec", row.codec},
                            {"bound_us", row.best.bound_us},
                            {"espresso_offload_tensors", row.espresso.offload_tensors},
                            {"iteration_us", std::move(strategies)}});
  }
  const Status written = write_json(arguments.json, json);
  return written ? kSuccess : report_wrong("report", written);
}

int run(const Arguments& arguments) {
  if (arguments.runs.empty() == arguments.table.empty()) {
    return report_wrong(
        "report",
        Status::error(Code::kInvalidArgument, "wanted the files of training runs, or --table, got ",
                      arguments.runs.empty() ? "neither" : "both"));
  }
  return arguments.table.empty() ? run_comparison(arguments) : run_table(arguments);
}

}  // namespace

void add_report(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("report", "training runs compared; tables of every strategy");
  verb->add_option("RUN", arguments->runs,
                   "files of gradpress train --json; the first is the measure");
  verb->add_option("--html", arguments->html, "write curves, timelines and plans to this page");
  verb->add_option("--target", arguments->target,
                   "time to this value of the metric; else to the best that every run reached");
  verb->add_option("--table", arguments->table, "strategies: every strategy on every model");
  verb->add_option("--traces", arguments->traces, "of --table: folder of trace files");
  verb->add_option("--clusters", arguments->clusters, "of --table: folder of cluster files");
  verb->add_option("--codec", arguments->codecs, "of --table: one row per codec")
      ->capture_default_str();
  verb->add_option("--json", arguments->json, "write all figures to this file");
  verb->footer(
      "Example: gradpress report none.json auto.json --html report.html\n"
      "         gradpress report --table strategies --traces traces --clusters clusters");
  verb->callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace gradpress::cli
