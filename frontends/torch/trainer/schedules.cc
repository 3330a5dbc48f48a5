#include "schedules.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numbers>

#include "spec/facts.h"

namespace gradpress::trainer {

namespace {

double factor(const ScheduleSettings& schedule, double part) {
  if (schedule.name == "cosine") return 0.5 * (1.0 + std::cos(std::numbers::pi * part));
  if (schedule.name != "step") return 1.0;
  const auto passed =
      std::ranges::count_if(schedule.decay_at, [&](double boundary) { return part >= boundary; });
  return std::pow(schedule.decay, static_cast<double>(passed));
}

/// "dgc:0.001:sample=0.1" with another ratio.
std::string with_ratio(const std::string& codec, std::size_t begin, std::size_t end, double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", ratio);
  return codec.substr(0, begin) + text + codec.substr(end);
}

}  // namespace

double learning_rate(const OptimizerSettings& optimizer, const ScheduleSettings& schedule,
                     std::int64_t step, std::int64_t steps) {
  if (step < schedule.warmup_steps) {
    return optimizer.lr * static_cast<double>(step + 1) /
           static_cast<double>(schedule.warmup_steps);
  }
  const std::int64_t rest = std::max<std::int64_t>(steps - schedule.warmup_steps, 1);
  const double part = static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(rest);
  return optimizer.lr * std::max(factor(schedule, part), schedule.floor);
}

Result<CodecSchedule> CodecSchedule::make(const CompressionSettings& settings,
                                          std::int64_t steps_per_epoch) {
  const std::string codec = settings.plan == "auto" ? "auto" : settings.codec;
  std::vector<Stage> stages;
  std::int64_t begin = std::llround(settings.dense_epochs * static_cast<double>(steps_per_epoch));
  if (begin > 0) stages.push_back({.begin = 0, .codec = "none"});
  if (settings.falling_epochs > 0.0) {
    const std::size_t colon = codec.find(':');
    double ratio = 0.0;
    const codec::Facts* const facts = codec::facts_of_text(codec);
    const bool has_ratio =
        facts != nullptr && facts->value == codec::Value::kRatio && colon != std::string::npos &&
        std::from_chars(codec.data() + colon + 1, codec.data() + codec.size(), ratio).ec ==
            std::errc();
    if (!has_ratio) {
      return fail(Code::kInvalidArgument, "--falling-epochs ", settings.falling_epochs,
                  ": wanted a codec with a ratio, such as dgc:0.001, got ", codec);
    }
    const std::size_t end = std::min(codec.find(':', colon + 1), codec.size());
    const std::int64_t first = begin;
    const double steps = settings.falling_epochs * static_cast<double>(steps_per_epoch);
    const unsigned count = settings.falling_stages > 0
                               ? settings.falling_stages
                               : static_cast<unsigned>(std::ceil(settings.falling_epochs));
    for (unsigned i = 0; i < count; ++i) {
      const double now = std::pow(ratio, (i + 1.0) / (count + 1.0));
      const std::int64_t next = first + std::llround(steps * (i + 1.0) / count);
      // More stages than steps: some have none.
      if (next == begin) continue;
      stages.push_back({.begin = begin, .codec = with_ratio(codec, colon + 1, end, now)});
      begin = next;
    }
  }
  stages.push_back({.begin = begin, .codec = codec});
  return CodecSchedule(std::move(stages));
}

const std::string& CodecSchedule::codec_at(std::int64_t step) const {
  const auto next = std::ranges::upper_bound(stages_, step, {}, &Stage::begin);
  return std::prev(next)->codec;
}

}  // namespace gradpress::trainer
