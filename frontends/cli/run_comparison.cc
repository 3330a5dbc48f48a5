#include "run_comparison.h"

#include <algorithm>
#include <cstdio>

namespace gradpress::cli {

namespace {

/// As many bytes of a name as the first column has.
constexpr std::size_t kNameColumns = 30;

bool reaches(const std::string& metric, double value, double target) {
  return less_is_better(metric) ? value <= target : value >= target;
}

std::optional<double> best_of(const TrainRun& run) {
  std::optional<double> best;
  for (const TrainPoint& point : run.history) {
    if (point.metric_value && (!best || reaches(run.metric, *point.metric_value, *best))) {
      best = point.metric_value;
    }
  }
  return best;
}

std::optional<double> seconds_to(const TrainRun& run, double target) {
  for (const TrainPoint& point : run.history) {
    if (point.metric_value && reaches(run.metric, *point.metric_value, target)) {
      return point.seconds;
    }
  }
  return {};
}

/// None when one of the runs was never evaluated.
std::optional<double> reached_by_all(const std::vector<TrainRun>& runs,
                                     const std::vector<ComparedRun>& rows) {
  std::optional<double> worst;
  for (const ComparedRun& row : rows) {
    if (!row.best_value) return {};
    if (!worst || reaches(runs.front().metric, *worst, *row.best_value)) worst = row.best_value;
  }
  return worst;
}

std::optional<double> ratio(std::optional<double> first, std::optional<double> own) {
  if (!first || !own || *first <= 0.0 || *own <= 0.0) return {};
  return *first / *own;
}

bool all_have(const std::vector<TrainRun>& runs, const auto& value_of) {
  return std::ranges::all_of(
      runs, [&](const TrainRun& run) { return value_of(run) == value_of(runs.front()); });
}

std::vector<std::string> notes_on(const std::vector<TrainRun>& runs) {
  std::vector<std::string> notes;
  const auto say = [&](const std::string& what, const std::string& so) {
    notes.push_back("The runs differ in " + what + ": " + so);
  };
  for (const char* key : {"model", "data", "workers", "backend", "link", "batch"}) {
    if (!all_have(runs, [&](const TrainRun& run) { return run.set(key); })) {
      say(key, "their times do not show the codec's effect alone.");
    }
  }
  if (!all_have(runs, [](const TrainRun& run) { return run.metric; })) {
    say("metric", "there is no time to the same value.");
  }
  if (!all_have(runs, [](const TrainRun& run) { return run.machine; })) {
    say("machine", "their times were taken on different ones.");
  }
  if (!all_have(runs, [](const TrainRun& run) { return run.steps; })) {
    say("steps", "their last values are of different lengths of training.");
  }
  return notes;
}

std::string number_text(const char* format, std::optional<double> value) {
  if (!value) return "-";
  char text[48];
  (void)std::snprintf(text, sizeof text, format, *value);
  return text;
}

/// The bytes of UTF-8 that stand for one column are counted once.
std::string name_cell(std::string name) {
  if (name.size() > kNameColumns) {
    std::size_t end = kNameColumns - 3;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0U) == 0x80U) --end;
    name = name.substr(0, end) + "...";
  }
  name.resize(std::max(name.size(), kNameColumns), ' ');
  return name;
}

}  // namespace

Result<RunComparison> compare_runs(const std::vector<TrainRun>& runs,
                                   std::optional<double> target) {
  RunComparison comparison;
  comparison.notes = notes_on(runs);
  const bool comparable = all_have(runs, [](const TrainRun& run) { return run.metric; });
  if (target && !comparable) {
    std::string metrics;
    for (const TrainRun& run : runs) metrics += " " + run.file + ": " + run.metric + ";";
    metrics.pop_back();
    return fail(Code::kInvalidArgument, "--target ", *target, ": wanted runs of one metric, got",
                metrics, ". Report them apart");
  }
  for (const TrainRun& run : runs) comparison.rows.push_back({.best_value = best_of(run)});
  comparison.target_given = target.has_value();
  comparison.target = target || !comparable ? target : reached_by_all(runs, comparison.rows);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ComparedRun& row = comparison.rows[i];
    row.step_speedup = ratio(runs.front().step_ms, runs[i].step_ms);
    if (!comparison.target) continue;
    row.seconds_to_target = seconds_to(runs[i], *comparison.target);
    row.target_speedup = ratio(comparison.rows.front().seconds_to_target, row.seconds_to_target);
  }
  return comparison;
}

std::string comparison_text(const std::vector<TrainRun>& runs, const RunComparison& comparison) {
  std::string text;
  const auto add = [&](const std::string& name, const std::vector<std::string>& cells) {
    char line[128];
    (void)std::snprintf(line, sizeof line, "%s %9s %13s %11s %11s %9s %9s", name_cell(name).c_str(),
                        cells[0].c_str(), cells[1].c_str(), cells[2].c_str(), cells[3].c_str(),
                        cells[4].c_str(), cells[5].c_str());
    text.append(line).append("\n");
  };
  const bool one_metric = all_have(runs, [](const TrainRun& run) { return run.metric; });
  add("run", {"ms/step", comparison.target ? "s to " + number_text("%.5g", comparison.target) : "",
              "sent/step", one_metric ? runs.front().metric : "metric", "per step",
              comparison.target ? "to target" : ""});
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ComparedRun& row = comparison.rows[i];
    const auto timed = [&](const std::string& cell) { return comparison.target ? cell : ""; };
    add(runs[i].name,
        {number_text("%.2f", runs[i].step_ms), timed(number_text("%.2f", row.seconds_to_target)),
         bytes_text(runs[i].wire_bytes_per_step), number_text("%.5g", runs[i].metric_value),
         number_text("%.2fx", row.step_speedup), timed(number_text("%.2fx", row.target_speedup))});
  }
  for (const std::string& note : comparison.notes) text.append(note).append("\n");
  return text;
}

Json comparison_json(const std::vector<TrainRun>& runs, const RunComparison& comparison) {
  const auto or_null = [](std::optional<double> value) {
    return value ? Json(*value) : Json(nullptr);
  };
  Json json = {{"target", or_null(comparison.target)},
               {"target_given", comparison.target_given},
               {"notes", comparison.notes},
               {"runs", Json::array()}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const TrainRun& run = runs[i];
    const ComparedRun& row = comparison.rows[i];
    json["runs"].push_back({{"name", run.name},
                            {"file", run.file},
                            {"steps", run.steps},
                            {"step_ms", run.step_ms},
                            {"wire_bytes_per_step", run.wire_bytes_per_step},
                            {"metric", run.metric},
                            {"metric_value", or_null(run.metric_value)},
                            {"best_value", or_null(row.best_value)},
                            {"seconds_to_target", or_null(row.seconds_to_target)},
                            {"step_speedup", or_null(row.step_speedup)},
                            {"target_speedup", or_null(row.target_speedup)}});
  }
  return json;
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  while (bytes >= 1000.0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000.0;
    ++unit;
  }
  char text[48];
  (void)std::snprintf(text, sizeof text, "%.*f %s", unit == 0 || bytes >= 100.0 ? 0 : 2, bytes,
                      kUnits[unit]);
  return text;
}

}  // namespace gradpress::cli
