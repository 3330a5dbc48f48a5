// What a person sees of a run: a bar on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

namespace gradpress::trainer {

/// Where a run is, as rank 0 sees it.
struct Progress {
  std::int64_t step = 0;  ///< done
  std::int64_t steps = 0;
  double loss = 0.0;
  double samples_per_s = 0.0;
  double bytes_per_step = 0.0;
  double exposed_ms = 0.0;
  std::string_view metric = {};
  double metric_value = 0.0;
  bool has_metric = false;
  bool evaluated = false;  ///< in this step: a line that stays, on a terminal too
};

/// Threads: any number at once.
class Console {
 public:
  /// `silent`: this process is not the one that speaks.
  Console(std::FILE* out, bool silent);

  /// One line that stays.
  void say(std::string_view line);
  void show(const Progress& progress);
  /// Takes the bar away.
  void end();

 private:
  void clear();

  std::FILE* const out_;
  const bool silent_;
  const bool terminal_;

  std::mutex mutex_;
  bool bar_shown_ = false;  // guarded by mutex_
};

/// "1.23 MB", "456 kB", "78 B".
std::string bytes_text(double bytes);
std::string progress_text(const Progress& progress);

}  // namespace gradpress::trainer
