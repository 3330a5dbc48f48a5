#include "console.h"

#include <unistd.h>

#include <algorithm>

namespace gradpress::trainer {

Console::Console(std::FILE* out, bool silent)
    : out_(out), silent_(silent), terminal_(isatty(fileno(out)) == 1) {}

void Console::clear() {
  if (bar_shown_) std::fprintf(out_, "\r\033[K");
  bar_shown_ = false;
}

void Console::say(std::string_view line) {
  if (silent_) return;
  const std::scoped_lock lock(mutex_);
  clear();
  std::fprintf(out_, "%.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(out_);
}

void Console::show(const Progress& progress) {
  if (silent_) return;
  if (!terminal_ || progress.evaluated) {
    Progress line = progress;
    line.has_metric = progress.evaluated;
    return say(progress_text(line));
  }
  constexpr std::int64_t kWidth = 20;
  const std::int64_t done = kWidth * progress.step / std::max<std::int64_t>(progress.steps, 1);
  std::string bar;
  for (std::int64_t i = 0; i < kWidth; ++i) bar += i < done ? "█" : "░";
  const std::scoped_lock lock(mutex_);
  clear();
  std::fprintf(out_, "%s %s", bar.c_str(), progress_text(progress).c_str());
  std::fflush(out_);
  bar_shown_ = true;
}

void Console::end() {
  if (silent_) return;
  const std::scoped_lock lock(mutex_);
  clear();
  std::fflush(out_);
}

std::string bytes_text(double bytes) {
  char text[32];
  if (bytes >= 1e6) {
    std::snprintf(text, sizeof text, "%.2f MB", bytes / 1e6);
  } else if (bytes >= 1e3) {
    std::snprintf(text, sizeof text, "%.1f kB", bytes / 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.0f B", bytes);
  }
  return text;
}

std::string progress_text(const Progress& progress) {
  char text[200];
  int used = std::snprintf(
      text, sizeof text, "%lld/%lld  loss %.4f  %.0f samples/s  %s/step  exposed %.1f ms",
      static_cast<long long>(progress.step), static_cast<long long>(progress.steps), progress.loss,
      progress.samples_per_s, bytes_text(progress.bytes_per_step).c_str(), progress.exposed_ms);
  if (progress.has_metric) {
    std::snprintf(text + used, sizeof text - static_cast<std::size_t>(used), "  %.*s %.2f",
                  static_cast<int>(progress.metric.size()), progress.metric.data(),
                  progress.metric_value);
  }
  return text;
}

}  // namespace gradpress::trainer
