#include "record.h"

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace gradpress::trainer {

namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[16];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return {text, length};
}

Json to_json(const Settings& settings, const Record& record) {
  const CompressionSettings& compression = settings.compression;
  char fingerprint[17];
  std::snprintf(fingerprint, sizeof fingerprint, "%016llx",
                static_cast<unsigned long long>(record.fingerprint));
  Json json = {{"format", "gradpress-train-1"},
               {"date", date_text()},
               {"machine", machine_text()},
               {"command", settings.command},
               {"model", settings.model.name},
               {"parameters", record.parameters},
               {"data", settings.data.source},
               {"workers", record.workers},
               {"backend", settings.workers.backend},
               {"link", settings.workers.link},
               {"codec", compression.plan.empty() ? compression.codec : "plan " + compression.plan},
               {"seed", settings.seed},
               {"batch", settings.batch},
               {"optimizer", settings.optimizer.name},
               {"lr", settings.optimizer.lr},
               {"steps", record.steps},
               {"step_ms", record.step_ms},
               {"exposed_ms", record.exposed_ms},
               {"metric", record.metric},
               {"metric_value", or_null(record.metric_value)},
               {"best_value", or_null(record.best_value)},
               {"wire_bytes_per_step", record.wire_bytes_per_step},
               {"wire_bytes_total", record.wire_bytes_total},
               {"warm_steps", record.warm_steps},
               {"compressed_share", record.compressed_share},
               {"skipped_steps", record.skipped_steps},
               {"interrupted", record.interrupted},
               {"seconds_to_target", or_null(record.seconds_to_target)},
               {"fingerprint", fingerprint},
               {"running", record.running},
               {"plan", record.plan}};
  json["history"] = Json::array();
  for (const HistoryPoint& point : record.history) {
    json["history"].push_back({{"step", point.step},
                               {"seconds", point.seconds},
                               {"loss", point.loss},
                               {"metric_value", or_null(point.metric_value)}});
  }
  json["spans"] = Json::array();
  for (const RecordedSpan& span : record.spans) {
    json["spans"].push_back({{"lane", span.lane},
                             {"action", span.action},
                             {"tensor", span.tensor},
                             {"start_us", span.start_us},
                             {"end_us", span.end_us}});
  }
  return json;
}

}  // namespace

bool is_better(const std::string& metric, double a, double b) {
  return metric == "perplexity" ? a < b : a > b;
}

std::string machine_text() {
  std::string cpu = "unknown CPU";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) cpu = line.substr(colon + 2);
    break;
  }
  const unsigned cores = std::thread::hardware_concurrency();
  return cpu + ", " + std::to_string(cores) + (cores == 1 ? " core" : " cores");
}

Status write_record(const std::string& file, const Settings& settings, const Record& record) {
  // Under another name first: no reader sees half a file.
  const std::string unfinished = file + ".part";
  {
    std::ofstream out(unfinished);
    out << to_json(settings, record).dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    out.flush();
    if (!out) {
      return Status::error(Code::kInvalidArgument, "--json ", file, ": cannot be written");
    }
  }
  std::error_code error;
  std::filesystem::rename(unfinished, file, error);
  if (error) {
    return Status::error(Code::kInvalidArgument, "--json ", file, ": ", error.message());
  }
  return {};
}

}  // namespace gradpress::trainer
