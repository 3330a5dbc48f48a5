#include "train_run.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>

#include "base/json.h"
#include "plan/field.h"

namespace gradpress::cli {

namespace {

using plan::Field;

constexpr const char* kFormat = "gradpress-train-1";
constexpr double kAnyNumber = std::numeric_limits<double>::lowest();
constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 53U;  // exact in a JSON number
constexpr const char* kSettings[] = {"codec",   "model", "data", "workers",
                                     "backend", "link",  "seed", "batch"};

Result<double> number_of(const Field& parent, const char* key, double least) {
  const auto field = parent.at(key);
  if (!field) return tl::unexpected(field.error());
  return field->number(least);
}

Result<std::uint64_t> whole_of(const Field& parent, const char* key) {
  const auto field = parent.at(key);
  if (!field) return tl::unexpected(field.error());
  return field->whole(0, kMostSteps);
}

Result<std::string> text_of(const Field& parent, const char* key) {
  const auto field = parent.at(key);
  if (!field) return tl::unexpected(field.error());
  return field->text();
}

/// None where the field is missing or null: JSON has no other word for a number that is not finite.
Result<std::optional<double>> maybe_number(const Field& parent, const char* key, double least) {
  if (!parent.has(key) || parent.json().at(key).is_null()) return std::optional<double>();
  const auto value = number_of(parent, key, least);
  if (!value) return tl::unexpected(value.error());
  return std::optional<double>(*value);
}

Result<std::string> maybe_text(const Field& parent, const char* key) {
  if (!parent.has(key) || parent.json().at(key).is_null()) return std::string();
  return text_of(parent, key);
}

Result<TrainPoint> read_point(const Field& field) {
  const auto step = whole_of(field, "step");
  if (!step) return tl::unexpected(step.error());
  const auto seconds = number_of(field, "seconds", 0.0);
  if (!seconds) return tl::unexpected(seconds.error());
  if (const auto there = field.at("loss"); !there) return tl::unexpected(there.error());
  const auto loss = maybe_number(field, "loss", kAnyNumber);
  if (!loss) return tl::unexpected(loss.error());
  const auto metric_value = maybe_number(field, "metric_value", kAnyNumber);
  if (!metric_value) return tl::unexpected(metric_value.error());
  return TrainPoint{
      .step = *step, .seconds = *seconds, .loss = *loss, .metric_value = *metric_value};
}

Status read_history(const Field& root, std::vector<TrainPoint>& history) {
  const auto points = root.at("history");
  if (!points) return points.error();
  const auto length = points->length();
  if (!length) return length.error();
  for (std::size_t i = 0; i < *length; ++i) {
    const Field field = points->at(i);
    const auto point = read_point(field);
    if (!point) return point.error();
    if (!history.empty() &&
        (point->step < history.back().step || point->seconds < history.back().seconds)) {
      return field.wrong("a step and a time not before the last point's").value();
    }
    history.push_back(*point);
  }
  return {};
}

Status read_spans(const Field& root, std::vector<TrainSpan>& spans) {
  if (!root.has("spans")) return {};
  const auto list = root.at("spans");
  if (!list) return list.error();
  const auto length = list->length();
  if (!length) return length.error();
  for (std::size_t i = 0; i < *length; ++i) {
    const Field field = list->at(i);
    TrainSpan span;
    for (const auto& [key, text] :
         {std::pair{"lane", &span.lane}, {"action", &span.action}, {"tensor", &span.tensor}}) {
      auto value = text_of(field, key);
      if (!value) return value.error();
      *text = std::move(*value);
    }
    const auto start = number_of(field, "start_us", 0.0);
    if (!start) return start.error();
    const auto end = number_of(field, "end_us", *start);
    if (!end) return end.error();
    span.start_us = *start;
    span.end_us = *end;
    spans.push_back(std::move(span));
  }
  return {};
}

/// What stands in the setting is shown, not counted with: a number is as good as a text.
Status read_settings(const Field& root, TrainRun& run) {
  for (const char* key : kSettings) {
    if (!root.has(key)) continue;
    const Json& value = root.json().at(key);
    if (value.is_number()) {
      run.setting.emplace_back(key, value.dump());
    } else {
      const auto text = maybe_text(root, key);
      if (!text) return text.error();
      if (!text->empty()) run.setting.emplace_back(key, *text);
    }
  }
  for (const auto& [key, text] : {std::pair{"plan", &run.plan},
                                  {"machine", &run.machine},
                                  {"date", &run.date},
                                  {"command", &run.command}}) {
    auto value = maybe_text(root, key);
    if (!value) return value.error();
    *text = std::move(*value);
  }
  return {};
}

Status read_result(const Field& root, TrainRun& run) {
  const auto steps = whole_of(root, "steps");
  if (!steps) return steps.error();
  const auto step_ms = number_of(root, "step_ms", 0.0);
  if (!step_ms) return step_ms.error();
  auto metric = text_of(root, "metric");
  if (!metric) return metric.error();
  const auto metric_value = maybe_number(root, "metric_value", kAnyNumber);
  if (!metric_value) return metric_value.error();
  const auto bytes = number_of(root, "wire_bytes_per_step", 0.0);
  if (!bytes) return bytes.error();
  const auto exposed_ms = maybe_number(root, "exposed_ms", 0.0);
  if (!exposed_ms) return exposed_ms.error();
  run.steps = *steps;
  run.step_ms = *step_ms;
  run.metric = std::move(*metric);
  run.metric_value = *metric_value;
  run.wire_bytes_per_step = *bytes;
  run.exposed_ms = *exposed_ms;
  return {};
}

}  // namespace

std::string TrainRun::set(const std::string& key) const {
  const auto found = std::ranges::find(setting, key, [](const auto& entry) { return entry.first; });
  return found == setting.end() ? std::string() : found->second;
}

bool less_is_better(const std::string& metric) {
  return metric == "perplexity" || metric == "loss";
}

Result<TrainRun> read_train_run(const std::string& file) {
  const auto json = read_json(file);
  if (!json) return tl::unexpected(json.error());
  const Field root(*json, file);
  if (root.has("format") && root.json().at("format") != kFormat) {
    const auto format = root.at("format");
    return format->wrong(std::string("\"") + kFormat + "\", as gradpress train --json writes it");
  }
  TrainRun run;
  run.file = file;
  for (const Status& status : {read_result(root, run), read_history(root, run.history),
                               read_spans(root, run.spans), read_settings(root, run)}) {
    if (!status) return tl::unexpected(status);
  }
  return run;
}

void name_runs(std::vector<TrainRun>& runs) {
  for (TrainRun& run : runs) run.name = run.set("codec");
  for (const char* key : kSettings) {
    const bool same = std::ranges::all_of(
        runs, [&](const TrainRun& run) { return run.set(key) == runs.front().set(key); });
    if (same || std::string_view(key) == "codec") continue;
    for (TrainRun& run : runs) {
      const std::string value = run.set(key);
      if (value.empty()) continue;
      const bool bare = std::string_view(key) == "model" || std::string_view(key) == "data" ||
                        std::string_view(key) == "backend" || std::string_view(key) == "link";
      run.name.append(run.name.empty() ? "" : ", ").append(bare ? value : key + (" " + value));
    }
  }
  std::map<std::string, int> seen;
  for (const TrainRun& run : runs) ++seen[run.name];
  for (TrainRun& run : runs) {
    if (!run.name.empty() && seen[run.name] == 1) continue;
    const std::string file = std::filesystem::path(run.file).filename().string();
    run.name = run.name.empty() ? file : run.name + " (" + file + ")";
  }
}

}  // namespace gradpress::cli
