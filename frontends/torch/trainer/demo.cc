#include "demo.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <sstream>
#include <utility>

#include "console.h"
#include "trainer.h"

namespace gradpress::trainer {

namespace {

namespace fs = std::filesystem;

/// Small enough for two cores, large enough that an uncompressed step is mostly communication.
Settings demo_settings() {
  Settings settings;
  settings.model = {.name = "lenet", .width = 10};
  settings.workers = {.link = "100mbit,100us", .workers = 4};
  settings.optimizer.lr = 0.02;
  settings.schedule = {.name = "cosine", .warmup_steps = 20};
  settings.batch = 32;
  settings.steps = 360;
  settings.eval_every = 30;
  // The hidden layer has 98 % of the elements. The small ones change the time of a step by little,
  // but in so few steps the result by points.
  settings.compression.least_elements = 8192;
  settings.log_every = 10;
  settings.data.test_samples = 4000;
  settings.command = "gradpress train --demo";
  return settings;
}

Result<Record> run_one(const Settings& settings, const std::string& title,
                       const std::atomic<bool>& stop) {
  std::printf("\n%s\n", title.c_str());
  std::fflush(stdout);
  auto record = train(settings, stop);
  if (record && record->interrupted) {
    return fail(Code::kInternal, "interrupted after step ", record->steps);
  }
  return record;
}

/// The program `gradpress`, beside this one or where the shell finds it.
std::string main_program() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (!error && fs::exists(self.parent_path() / "gradpress")) {
    return (self.parent_path() / "gradpress").string();
  }
  return "gradpress";
}

Status make_page(const std::vector<std::string>& runs, const std::string& page) {
  std::vector<std::string> words = {main_program(), "report"};
  words.insert(words.end(), runs.begin(), runs.end());
  words.insert(words.end(), {"--html", page});
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    // The table was printed already.
    if (std::freopen("/dev/null", "w", stdout) != nullptr) {
      execvp(arguments[0], arguments.data());
    }
    _exit(127);
  }
  int end = 0;
  if (child < 0 || waitpid(child, &end, 0) != child || !WIFEXITED(end) || WEXITSTATUS(end) != 0) {
    return Status::error(Code::kInternal, "\"", words[0], " report\" could not make ", page,
                         "; the runs are in ", runs.front(), " and beside it");
  }
  return {};
}

/// Lines of at most `columns` characters, but for words that are longer.
std::string wrapped(const std::string& text, std::size_t columns) {
  std::istringstream words(text);
  std::string lines;
  std::size_t used = 0;
  for (std::string word; words >> word;) {
    const bool fits = used + 1 + word.size() <= columns;
    if (!lines.empty()) lines += fits ? ' ' : '\n';
    used = fits || lines.empty() ? used + 1 + word.size() : word.size();
    lines += word;
  }
  return lines;
}

std::string cell(const char* format, double value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace

std::optional<double> seconds_to(const Record& record, double target) {
  for (const HistoryPoint& point : record.history) {
    if (point.metric_value && !is_better(record.metric, target, *point.metric_value)) {
      return point.seconds;
    }
  }
  return {};
}

std::optional<double> common_target(const std::vector<NamedRecord>& runs) {
  std::optional<double> target;
  for (const auto& [name, record] : runs) {
    if (!record.best_value) return {};
    if (!target || is_better(record.metric, *target, *record.best_value)) {
      target = record.best_value;
    }
  }
  return target;
}

std::string comparison_table(const std::vector<NamedRecord>& runs) {
  const auto target = common_target(runs);
  const std::string metric = runs.empty() ? "" : runs.front().record.metric;
  char line[160];
  std::string table;
  const auto add = [&](const std::vector<std::string>& cells) {
    std::snprintf(line, sizeof line, "%-14s %10s %14s %12s %12s %10s %10s\n", cells[0].c_str(),
                  cells[1].c_str(), cells[2].c_str(), cells[3].c_str(), cells[4].c_str(),
                  cells[5].c_str(), cells[6].c_str());
    table += line;
  };
  const std::string to = target ? "s to " + cell("%.1f", *target) : "s to target";
  add({"", "ms/step", to, "bytes/step", metric, "per step", "to target"});
  // Seconds; 0: never.
  const auto time_of = [&](const Record& record) {
    return target ? seconds_to(record, *target).value_or(0.0) : 0.0;
  };
  const double first = runs.empty() ? 0.0 : time_of(runs.front().record);
  for (const auto& [name, record] : runs) {
    const double own = time_of(record);
    add({name, cell("%.1f", record.step_ms), own > 0.0 ? cell("%.1f", own) : "-",
         bytes_text(record.wire_bytes_per_step),
         record.metric_value ? cell("%.2f", *record.metric_value) : "-",
         cell("%.2f x", runs.front().record.step_ms / record.step_ms),
         own > 0.0 && first > 0.0 ? cell("%.2f x", first / own) : "-"});
  }
  return table;
}

Status run_demo(const std::string& folder, const std::atomic<bool>& stop) {
  std::error_code error;
  fs::create_directories(folder, error);
  const auto place = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  std::vector<NamedRecord> runs;
  std::vector<std::string> files;
  std::printf(
      "Fashion-MNIST, lenet, 4 workers as threads of this process, each behind an emulated "
      "100 Mbit link.\n");
  for (const bool automatic : {false, true}) {
    Settings settings = demo_settings();
    settings.json = place(automatic ? "train-auto.json" : "train-none.json");
    if (automatic) {
      settings.compression.plan = "auto";
      // It decides by time alone, and after so few steps without a warm-up most codecs are still
      // behind: this one ends where uncompressed training ends.
      settings.compression.auto_codecs = {"acpsgd:8"};
    }
    auto record =
        run_one(settings, automatic ? "2 of 2: --plan auto" : "1 of 2: without compression", stop);
    if (!record) return record.error();
    files.push_back(settings.json);
    runs.push_back(
        {.name = automatic ? "plan auto" : "uncompressed", .record = std::move(*record)});
  }
  std::printf("\n%s\n%s\n", comparison_table(runs).c_str(),
              wrapped("The plan ended with: " + runs.back().record.running, 96).c_str());
  const std::string page = place("report.html");
  if (Status status = make_page(files, page); !status) return status;
  std::printf("%s\n", fs::absolute(page).lexically_normal().c_str());
  return {};
}

}  // namespace gradpress::trainer
