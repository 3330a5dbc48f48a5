#include "engine/autopilot.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace gradpress::engine {

namespace {

/// The first step after a change pays for cold caches and new buffers.
constexpr unsigned kSettling = 1;
/// Of steps that take this long so many are enough to know what raw ones take.
constexpr double kLongStepUs = 1e6;
constexpr unsigned kFewSteps = 3;

double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::string in_ms(double us) {
  char text[32];
  (void)std::snprintf(text, sizeof text, us < 100'000.0 ? "%.2f ms" : "%.0f ms", us / 1000.0);
  return text;
}

}  // namespace

Autopilot::Autopilot(AutoOptions options, AutoHost& host)
    : options_(std::move(options)), host_(host) {}

void Autopilot::enter(Phase phase) {
  phase_ = phase;
  steps_ = 0;
  times_us_.clear();
}

void Autopilot::start() {
  runs_plan_ = false;
  drifted_ = false;
  usual_us_ = 0.0;
  state_ = "none: watching raw steps";
  enter(Phase::kWatch);
  host_.record(std::max(1U, options_.raw_steps));
}

void Autopilot::resume(std::string verdict) {
  runs_plan_ = true;
  usual_us_ = 0.0;
  verdict_ = std::move(verdict);
  state_ = verdict_;
  enter(Phase::kStay);
}

Result<double> Autopilot::agreed_median() { return host_.slowest(median_of(times_us_)); }

Status Autopilot::after_step(double step_us) {
  ++steps_;
  if (steps_ > kSettling) times_us_.push_back(step_us);
  switch (phase_) {
    case Phase::kWatch: {
      const unsigned most = std::max(1U, options_.raw_steps);
      if (steps_ >= kSettling + most) return end_watch();
      if (steps_ != kSettling + kFewSteps) return {};
      // Long steps tell as much in fewer of them.
      const auto median = agreed_median();
      if (!median) return median.error();
      return *median >= kLongStepUs ? end_watch() : Status();
    }
    case Phase::kMeasure: {
      // No longer than a step takes.
      const auto complete = host_.continue_profile(usual_us_);
      if (!complete) return complete.error();
      return *complete ? plan() : Status();
    }
    case Phase::kTry:
      return steps_ >= kSettling + std::max(1U, options_.window) ? end_try() : Status();
    case Phase::kTryCodec:
      return steps_ >= kSettling + std::max(1U, options_.window) ? end_try_codec() : Status();
    case Phase::kStay:
      return look_for_drift();
  }
  return {};
}

Status Autopilot::end_watch() {
  const auto median = agreed_median();
  if (!median) return median.error();
  usual_us_ = *median;
  if (!runs_plan_) {
    const auto other = host_.slowest(options_.other_raw_us ? options_.other_raw_us() : 0.0);
    if (!other) return other.error();
    watched_us_ = *median;
    raw_us_ = *other > 0.0 ? std::min(*other, *median) : *median;
  }
  raw_measured_ = !runs_plan_;
  state_ = (runs_plan_ ? verdict_ : std::string("none")) + ": measuring links and codecs";
  const auto fits = host_.begin_profile(!drifted_, usual_us_);
  if (!fits) return fits.error();
  if (*fits) return plan();
  enter(Phase::kMeasure);
  return {};
}

Status Autopilot::plan() {
  auto made = host_.make_plan();
  if (!made && made.error().code() == Code::kPeerLost) return made.error();
  // What the planner cannot do, it cannot do on any rank: that is no reason to stop.
  if (!made) made = AutoPlan{.verdict = "no plan could be made: " + made.error().message()};
  verdict_ = made->verdict;
  drifted_ = false;
  if (!raw_measured_) raw_us_ = made->raw_us;
  if (!made->compresses) {
    if (std::exchange(runs_plan_, false)) {
      if (Status status = host_.run_raw(); !status) return status;
      usual_us_ = 0.0;
    }
    state_ = "none: " + verdict_;
    host_.say("auto: " + verdict_);
    enter(Phase::kStay);
    return {};
  }
  plan_ = std::move(*made);
  if (Status status = host_.run_plan(plan_.plan); !status) return status;
  runs_plan_ = true;
  state_ = "trying: " + verdict_;
  host_.say("auto: " + verdict_);
  enter(Phase::kTry);
  return {};
}

Status Autopilot::end_try() {
  const auto median = agreed_median();
  if (!median) return median.error();
  plan_us_ = fastest_us_ = *median;
  codec_ = 0;
  return try_next_codec();
}

Status Autopilot::try_next_codec() {
  const std::vector<std::string>& codecs = plan_.codecs;
  if (codec_ < codecs.size()) {
    // What the planner does not know of, cores that workers share above all, may favour the
    // simplest way: the same codec for all, in few messages.
    if (Status status = host_.run_codec(codecs[codec_]); !status) return status;
    state_ = "trying: " + codecs[codec_] + " for all tensors";
    enter(Phase::kTryCodec);
    return {};
  }
  const bool plan = fastest_us_ == plan_us_;
  if (!codecs.empty() && (plan || fastest_ + 1 < codecs.size())) {
    Status status = plan ? host_.run_plan(plan_.plan) : host_.run_codec(codecs[fastest_]);
    if (!status) return status;
  }
  if (!plan) {
    verdict_ = codecs[fastest_] + " for all tensors, " + in_ms(fastest_us_) +
               " a step where a plan took " + in_ms(plan_us_);
  }
  return keep(fastest_us_);
}

Status Autopilot::end_try_codec() {
  const auto median = agreed_median();
  if (!median) return median.error();
  if (*median < fastest_us_) {
    fastest_us_ = *median;
    fastest_ = codec_;
  }
  ++codec_;
  return try_next_codec();
}

Status Autopilot::keep(double median_us) {
  const std::string compared = in_ms(median_us) + " a step, raw " +
                               (raw_measured_ ? "took " : "would take ") + in_ms(raw_us_);
  if (median_us < raw_us_) {
    usual_us_ = median_us;
    state_ = verdict_ + "; measured " + compared;
    host_.say("auto: stays with the plan: " + compared);
    enter(Phase::kStay);
    return {};
  }
  if (Status status = host_.run_raw(); !status) return status;
  runs_plan_ = false;
  usual_us_ = raw_measured_ ? watched_us_ : 0.0;
  state_ = "none: the plan was no gain, " + compared;
  host_.say("auto: back to no compression: the plan was no gain, " + compared);
  enter(Phase::kStay);
  return {};
}

Status Autopilot::look_for_drift() {
  const unsigned interval = std::max({1U, options_.drift_interval, kSettling + 1});
  if (steps_ < interval) return {};
  // The last steps alone: what came before may have been another time.
  const std::size_t window = std::max(1U, options_.window);
  if (times_us_.size() > window) {
    times_us_.erase(times_us_.begin(), times_us_.end() - static_cast<std::ptrdiff_t>(window));
  }
  const auto median = agreed_median();
  if (!median) return median.error();
  enter(Phase::kStay);
  const double usual = std::exchange(usual_us_, usual_us_ == 0.0 ? *median : usual_us_);
  if (usual == 0.0) return {};
  const bool slower = *median > options_.drift_factor * usual;
  const bool faster = *median * options_.drift_factor < usual;
  if (!slower && !faster) return {};
  host_.say("auto: a step takes " + in_ms(*median) + " instead of " + in_ms(usual) +
            ": measuring again");
  drifted_ = true;
  enter(Phase::kWatch);
  host_.record(std::max(1U, options_.raw_steps));
  return {};
}

}  // namespace gradpress::engine
