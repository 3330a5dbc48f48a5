#include "engine/autopilot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>

namespace gradpress::engine {

namespace {

/// The first step after a change pays for cold caches and new buffers.
constexpr unsigned kSettling = 1;
/// Counted steps of a block: even, because ACP-SGD's two kinds of steps take turns.
constexpr std::size_t kBlockSteps = 4;
/// Of steps that take this long so many are enough to know what they take.
constexpr double kLongStepUs = 1e6;
constexpr unsigned kFewSteps = 2;

/// A candidate that is not promising (below) is run if the timeline predicts at most so many
/// baselines, and at most so many times the best predicted candidate. Predictions ignore shared
/// cores: they are mostly too low.
constexpr double kMostOfBase = 1.1;
constexpr double kMostOfBest = 1.5;
/// A candidate that is predicted to take at most so much of a baseline step is run in any case.
constexpr double kPromising = 0.8;
/// The share of the settling limit that links and codecs are measured in.
constexpr double kProfileShare = 0.2;
/// The share of the limit that is planned for: the account knows times from few steps.
constexpr double kPlannedShare = 0.6;

/// A difference counts if it is above so many standard errors.
constexpr double kSure = 3.0;
/// The least difference that drops a candidate, as a logarithm. One round alone may have met a
/// burst of load: there a candidate must take twice as long. The reference is not run at all on a
/// slow link, so it is dropped earlier.
constexpr double kGross = 0.69;
constexpr double kGrossReference = 0.26;  // 30 %
constexpr double kLeastDifference = 0.02;
/// Candidates this close to the fastest count as equal.
constexpr double kAlike = 0.01;
/// A block ends early when all its steps take so many times the best known step: of one that does
/// not count, of the first round's, and of later rounds' after two that count.
constexpr double kFarBehindCold = 4.0;
constexpr double kFarBehind = 2.0;
constexpr double kBehindAgain = 1.15;

constexpr double kLeastNoise = 0.01;
constexpr double kMostNoise = 0.15;
/// The median of |a - b| of two normal variables, in standard deviations.
constexpr double kMedianDifference = 0.954;

/// Of an even number the mean of the middle two.
double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 != 0) return *middle;
  return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

std::string in_ms(double us) {
  char text[32];
  (void)std::snprintf(text, sizeof text, us < 100'000.0 ? "%.2f ms" : "%.0f ms", us / 1000.0);
  return text;
}

std::string in_percent(double share) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.1f %%", 100.0 * share);
  return text;
}

std::string one_decimal(double value) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

bool is_time(double us) { return std::isfinite(us) && us > 0.0; }

/// Adds the time of a scope to an account.
class Timed {
 public:
  Timed(AutoHost& host, double& account) : host_(host), account_(account), begin_(host.now_us()) {}
  ~Timed() { account_ += host_.now_us() - begin_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  AutoHost& host_;
  double& account_;
  const double begin_;
};

template <class Work>
auto timed(AutoHost& host, double& account, const Work& work) {
  const Timed scope(host, account);
  return work();
}

}  // namespace

Autopilot::Autopilot(AutoOptions options, AutoHost& host)
    : options_(std::move(options)),
      host_(host),
      block_steps_(std::clamp<std::size_t>(options_.window, 1, kBlockSteps)),
      most_rounds_(std::max<std::size_t>(1, options_.window / block_steps_)) {}

void Autopilot::enter(Phase phase) {
  phase_ = phase;
  steps_ = 0;
  times_us_.clear();
}

void Autopilot::watch() {
  enter(Phase::kWatch);
  host_.record(std::max(1U, options_.raw_steps));
}

void Autopilot::start() {
  runs_ = {.kind = AutoCandidate::Kind::kRaw, .name = "no compression"};
  drifted_ = false;
  suspects_drift_ = false;
  usual_us_ = 0.0;
  spent_us_ = 0.0;
  state_ = "none: watching raw steps";
  watch();
}

void Autopilot::resume(std::string verdict) {
  runs_ = {.kind = AutoCandidate::Kind::kGiven, .name = verdict};
  usual_us_ = 0.0;
  suspects_drift_ = false;
  state_ = std::move(verdict);
  enter(Phase::kStay);
}

Result<double> Autopilot::agreed_median() { return host_.slowest(median_of(times_us_)); }

Status Autopilot::settle_account() {
  const auto all = host_.slowest(std::exchange(unsettled_us_, 0.0));
  if (!all) return all.error();
  spent_us_ += std::max(0.0, *all);
  return {};
}

Status Autopilot::after_step(double step_us) {
  if (phase_ == Phase::kTry) return try_step(step_us);
  ++steps_;
  if (steps_ > kSettling) times_us_.push_back(step_us);
  switch (phase_) {
    case Phase::kWatch: {
      if (steps_ >= kSettling + std::max(1U, options_.raw_steps)) return end_watch();
      if (steps_ != kSettling + kFewSteps) return {};
      // Long steps tell as much in fewer of them, and raw ones are not the baseline beside a path
      // of the caller's own.
      const auto median = agreed_median();
      if (!median) return median.error();
      const auto own = own_path_us();
      if (!own) return own.error();
      const bool enough =
          *median >= kLongStepUs || (runs_.kind == AutoCandidate::Kind::kRaw && *own > 0.0);
      return enough ? end_watch() : Status();
    }
    case Phase::kMeasure: {
      // No longer than a step takes.
      const auto complete =
          timed(host_, unsettled_us_, [&] { return host_.continue_profile(usual_us_); });
      if (!complete) return complete.error();
      return *complete ? plan() : Status();
    }
    case Phase::kTry:
    case Phase::kStay:
      return look_for_drift();
  }
  return {};
}

Result<double> Autopilot::own_path_us() {
  auto own = host_.slowest(options_.other_raw_us ? options_.other_raw_us() : 0.0);
  if (own && !is_time(*own)) own = 0.0;
  return own;
}

double Autopilot::undisturbed_us(const Trial& trial) const {
  if (trial.block_us.empty()) return trial.what.predicted_us;
  return base_us_ * std::exp(median_of(differences(trial, trials_.front())));
}

double Autopilot::spent_us() const {
  // Load of other programs is no cost of settling: it slows every candidate.
  double us = spent_us_;
  for (const Trial& trial : trials_) {
    if (trial.steps == 0) continue;
    us += static_cast<double>(trial.steps) * std::max(0.0, undisturbed_us(trial) - base_us_);
  }
  return us;
}

bool Autopilot::affords(double us) const {
  const auto held = static_cast<double>(std::ranges::count_if(trials_, &Trial::held));
  return spent_us() + us + held * change_us_ / 2.0 <=
         kPlannedShare * options_.settle_steps * base_us_;
}

Status Autopilot::end_watch() {
  const auto median = agreed_median();
  if (!median) return median.error();
  usual_us_ = watched_us_ = base_us_ = *median;
  spent_us_ = unsettled_us_ = 0.0;
  trials_.clear();
  own_path_ = asks_baseline_ = false;
  const bool raw = runs_.kind == AutoCandidate::Kind::kRaw;
  if (raw) {
    const auto own = own_path_us();
    if (!own) return own.error();
    own_path_ = *own > 0.0;
    if (own_path_ && *own < base_us_) {
      base_us_ = *own;
      spent_us_ += static_cast<double>(steps_) * (*median - *own);
    }
    const auto compute = host_.compute_us();
    if (!compute) return compute.error();
    if (is_time(*compute) && *compute > (1.0 - options_.min_gain) * base_us_) {
      return stay("do not compress: a step takes " + in_ms(base_us_) + ", and " +
                  in_percent(std::max(0.0, 1.0 - *compute / base_us_)) +
                  " of it is communication that backward does not hide");
    }
  }
  trials_.assign(
      1, {.what = runs_, .block_us = {base_us_}, .counted = steps_ - kSettling, .held = true});
  scatter_.clear();
  state_ = (raw ? "none" : runs_.name) + ": measuring links and codecs";
  const auto fits = timed(host_, unsettled_us_, [&] {
    return host_.begin_profile(!drifted_, usual_us_,
                               kProfileShare * options_.settle_steps * base_us_);
  });
  if (!fits) return fits.error();
  if (*fits) return plan();
  enter(Phase::kMeasure);
  return {};
}

Status Autopilot::stay(const std::string& why) {
  drifted_ = false;
  state_ = (runs_.kind == AutoCandidate::Kind::kRaw ? "none" : runs_.name) + ": " + why;
  host_.say("auto: " + why);
  enter(Phase::kStay);
  return {};
}

Status Autopilot::plan() {
  auto made = timed(host_, unsettled_us_, [&] { return host_.make_plan(); });
  if (!made && made.error().code() == Code::kPeerLost) return made.error();
  // What the planner cannot do, it cannot do on any rank: that is no reason to stop.
  if (!made) return stay("no plan could be made: " + made.error().message());
  if (Status status = settle_account(); !status) return status;
  verdict_ = made->verdict;
  if (runs_.kind != AutoCandidate::Kind::kRaw && is_time(made->raw_us)) {
    made->candidates.insert(made->candidates.begin(), {.kind = AutoCandidate::Kind::kRaw,
                                                       .name = "no compression",
                                                       .predicted_us = made->raw_us});
  }
  double best = kMostOfBase * base_us_;
  for (const AutoCandidate& candidate : made->candidates) {
    if (is_time(candidate.predicted_us)) best = std::min(best, candidate.predicted_us);
  }
  for (AutoCandidate& candidate : made->candidates) {
    if (!is_time(candidate.predicted_us)) continue;
    // Where a candidate is well below the baseline, running it costs nothing, and predictions of
    // codecs that were measured on busy cores may be far off.
    const bool promising = candidate.predicted_us <= kPromising * base_us_;
    if (!promising &&
        candidate.predicted_us > std::min(kMostOfBase * base_us_, kMostOfBest * best)) {
      continue;
    }
    if (candidate.name == runs_.name) continue;
    trials_.push_back({.what = std::move(candidate)});
  }
  if (trials_.size() == 1) return stay(verdict_);
  host_.say("auto: prediction: " + verdict_);
  round_ = 0;
  change_us_ = 0.0;
  now_ = 0;
  return begin_round();
}

Status Autopilot::begin_round() {
  // The reference's first block was the watch.
  const bool runs_reference = round_ > 0 && trials_.front().live;
  asks_baseline_ = runs_reference && own_path_;
  queue_.clear();
  for (std::size_t i = runs_reference && !own_path_ ? 0 : 1; i < trials_.size(); ++i) {
    if (trials_[i].live) queue_.push_back(i);
  }
  if (round_ == 0) {
    // The most promising first: if the account ends early, the others are what is left out.
    std::ranges::stable_sort(queue_, {},
                             [&](std::size_t i) { return trials_[i].what.predicted_us; });
  } else {
    // Each comes at each place of a round in turn: a drift favours nobody. Nobody runs two blocks
    // in a row, which one burst of load could hit.
    const std::size_t first = round_ % queue_.size();
    std::rotate(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(first), queue_.end());
    if (queue_.size() > 1 && queue_.front() == now_) std::swap(queue_[0], queue_[1]);
  }
  // Taken from the back.
  std::ranges::reverse(queue_);
  return next_block();
}

Status Autopilot::next_block() {
  if (queue_.empty()) return end_round();
  const std::size_t next = queue_.back();
  queue_.pop_back();
  Trial& trial = trials_[next];
  // A block of a later round ends early if its candidate is behind again.
  const double step_us = undisturbed_us(trial);
  const bool ends_early = round_ > 0 && step_us > kBehindAgain * base_us_;
  const std::size_t steps = kSettling + (ends_early ? 2 : block_steps_);
  const double excess_us = static_cast<double>(steps) * std::max(0.0, step_us - base_us_);
  // What is not slower than the baseline, to one standard error, goes on: it may yet win, and costs
  // little. What is slower would not be chosen.
  const double standard_error =
      noise() / std::sqrt(static_cast<double>(std::max<std::size_t>(1, round_)));
  const bool goes_on = trial.held && step_us <= std::exp(standard_error) * base_us_;
  // A large gain pays for its trial in a few steps, whatever was spent before.
  const bool promises = trial.block_us.empty() && step_us < kPromising * base_us_;
  const bool is_free = goes_on || promises;
  if (!is_free && !affords(excess_us + (trial.held ? 0.0 : change_us_))) {
    drop(trial, trial.block_us.empty() ? "was not tried, because the settling limit was reached"
                                       : "dropped after " + std::to_string(trial.counted) +
                                             " steps at the settling limit");
    return next_block();
  }
  if (next != now_) {
    double taken_us = 0.0;
    Status status = timed(host_, taken_us, [&] { return host_.run(trial.what); });
    if (!status) return status;
    const auto agreed = host_.slowest(taken_us);
    if (!agreed) return agreed.error();
    spent_us_ += std::max(0.0, *agreed);
    change_us_ = std::max(change_us_, *agreed);
    now_ = next;
    runs_ = trial.what;
    trial.held = true;
    if (status = release(); !status) return status;
  }
  state_ = "trying: " + trial.what.name + ", round " + std::to_string(round_ + 1) + " of at most " +
           std::to_string(most_rounds_);
  enter(Phase::kTry);
  return {};
}

Status Autopilot::try_step(double step_us) {
  if (std::exchange(asks_baseline_, false)) {
    // The time since the last step has the caller's own steps in it.
    const auto own = own_path_us();
    if (!own) return own.error();
    Trial& reference = trials_.front();
    reference.block_us.push_back(is_time(*own) ? std::min(*own, watched_us_)
                                               : reference.block_us.back());
    times_us_.push_back(base_us_);
    ++steps_;
    return {};
  }
  const auto agreed = host_.slowest(step_us);
  if (!agreed) return agreed.error();
  ++steps_;
  times_us_.push_back(*agreed);
  if (steps_ == kSettling + block_steps_ || is_far_behind()) return end_block();
  return {};
}

bool Autopilot::is_far_behind() const {
  double best_us = base_us_;
  for (const Trial& trial : trials_) {
    if (trial.live && !trial.block_us.empty()) best_us = std::min(best_us, trial.block_us.back());
  }
  if (steps_ <= kSettling) return times_us_.back() > kFarBehindCold * base_us_;
  // All of them: one slow step is a hiccup.
  const double least_us = *std::min_element(times_us_.begin() + kSettling, times_us_.end());
  if (std::min(times_us_.front(), least_us) > kFarBehind * best_us) return true;
  const double again = std::max(kBehindAgain, std::exp(kSure * noise()));
  return round_ > 0 && steps_ >= kSettling + 2 && least_us > again * best_us;
}

Status Autopilot::end_block() {
  Trial& trial = trials_[now_];
  std::vector<double> counted = times_us_;
  if (counted.size() > kSettling) counted.erase(counted.begin(), counted.begin() + kSettling);
  for (std::size_t i = 2; i < counted.size(); ++i) {
    scatter_.push_back(std::abs(std::log(counted[i] / counted[i - 2])));
  }
  trial.block_us.push_back(median_of(counted));
  trial.counted += static_cast<unsigned>(counted.size());
  trial.steps += steps_;
  return next_block();
}

double Autopilot::noise() const {
  if (scatter_.empty()) return kMostNoise / 3.0;
  const double sigma = median_of(scatter_) / kMedianDifference;
  return std::clamp(sigma, kLeastNoise, kMostNoise);
}

double Autopilot::usual_us(const Trial& trial) { return median_of(trial.block_us); }

std::vector<double> Autopilot::differences(const Trial& trial, const Trial& other) {
  const std::size_t rounds = std::min(trial.block_us.size(), other.block_us.size());
  std::vector<double> all;
  for (std::size_t round = 0; round < rounds; ++round) {
    all.push_back(std::log(trial.block_us[round] / other.block_us[round]));
  }
  return all;
}

double Autopilot::behind(const Trial& trial, const Trial& other) {
  // Up to a third of the rounds may have met a burst of load; one of two and of three.
  std::vector<double> all = differences(trial, other);
  std::ranges::sort(all);
  return all[(all.size() - 1) / 3];
}

std::vector<double> Autopilot::scores() const {
  std::vector<std::vector<double>> of_trial(trials_.size());
  std::size_t rounds = SIZE_MAX;
  for (const Trial& trial : trials_) {
    if (trial.live) rounds = std::min(rounds, trial.block_us.size());
  }
  for (std::size_t round = 0; round < rounds; ++round) {
    double sum = 0.0;
    double count = 0.0;
    for (const Trial& trial : trials_) {
      if (!trial.live) continue;
      sum += std::log(trial.block_us[round]);
      count += 1.0;
    }
    for (std::size_t i = 0; i < trials_.size(); ++i) {
      if (trials_[i].live)
        of_trial[i].push_back(std::log(trials_[i].block_us[round]) - sum / count);
    }
  }
  std::vector<double> scores;
  scores.reserve(of_trial.size());
  for (std::vector<double>& differences : of_trial) {
    scores.push_back(median_of(std::move(differences)));
  }
  return scores;
}

std::size_t Autopilot::leader() const {
  const std::vector<double> all = scores();
  std::size_t best = trials_.size();
  for (std::size_t i = 0; i < trials_.size(); ++i) {
    if (trials_[i].live && (best == trials_.size() || all[i] < all[best])) best = i;
  }
  return best;
}

void Autopilot::drop(Trial& trial, std::string why) {
  trial.live = false;
  trial.why_out = std::move(why);
}

Status Autopilot::release() {
  const Timed scope(host_, unsettled_us_);
  for (std::size_t i = 0; i < trials_.size(); ++i) {
    if (trials_[i].live || i == now_ || !std::exchange(trials_[i].held, false)) continue;
    if (Status status = host_.drop(trials_[i].what); !status) return status;
  }
  return {};
}

Status Autopilot::drop_the_slow() {
  const Trial& best = trials_[leader()];
  const double standard_error = noise() / std::sqrt(static_cast<double>(round_ + 1));
  for (Trial& trial : trials_) {
    if (!trial.live || &trial == &best) continue;
    double least = kLeastDifference;
    if (round_ == 0) least = &trial == &trials_.front() ? kGrossReference : kGross;
    const double slower = behind(trial, best);
    if (slower <= std::max(least, kSure * standard_error)) continue;
    drop(trial, "dropped after " + std::to_string(trial.counted) + " steps");
  }
  return release();
}

Status Autopilot::end_round() {
  if (Status status = drop_the_slow(); !status) return status;
  if (Status status = settle_account(); !status) return status;
  std::vector<double> base = trials_.front().block_us;
  std::ranges::sort(base);
  base_us_ = base[(base.size() - 1) / 3];
  const auto live = std::ranges::count_if(trials_, &Trial::live);
  ++round_;
  if (live == 1 || round_ == most_rounds_) return decide();
  return begin_round();
}

std::string Autopilot::figures() const {
  std::string text;
  for (const Trial& trial : trials_) {
    const bool other = &trial == &trials_.front() && own_path_;
    text += text.empty() ? "" : "; ";
    text += trial.what.name;
    if (other) text += " (the caller's own path)";
    if (trial.block_us.empty()) {
      text += " " + trial.why_out;
      continue;
    }
    text += " " + in_ms(usual_us(trial));
    if (!trial.why_out.empty()) text += " (" + trial.why_out + ")";
  }
  return text;
}

Status Autopilot::decide() {
  const std::vector<double> all = scores();
  const std::size_t best = leader();
  std::size_t chosen = best;
  if (trials_.front().live) {
    // Without a minimum gain noise alone would decide for a codec.
    const bool gains = all[best] < all[0] + std::log1p(-options_.min_gain);
    if (!gains) chosen = 0;
  }
  if (chosen != 0) {
    for (std::size_t i = 1; i < trials_.size(); ++i) {
      const bool equal = trials_[i].live && all[i] <= all[best] + kAlike;
      if (equal && (!trials_.front().live || all[i] < all[0] + std::log1p(-options_.min_gain))) {
        chosen = i;
        break;
      }
    }
  }
  const Trial& winner = trials_[chosen];
  if (std::exchange(now_, chosen) != chosen) {
    const Status status = timed(host_, unsettled_us_, [&] { return host_.run(winner.what); });
    if (!status) return status;
  }
  for (std::size_t i = 0; i < trials_.size(); ++i) trials_[i].live = i == chosen;
  if (Status status = release(); !status) return status;
  if (Status status = settle_account(); !status) return status;
  runs_ = winner.what;
  drifted_ = asks_baseline_ = false;
  const bool raw = runs_.kind == AutoCandidate::Kind::kRaw;
  // The engine's own raw steps are what drift is measured by, also beside a faster path.
  usual_us_ = chosen == 0 && own_path_ ? watched_us_ : usual_us(winner);
  const std::string cost = "settling cost " + one_decimal(spent_us() / base_us_) + " of at most " +
                           one_decimal(options_.settle_steps) + " baseline steps";
  std::string line = chosen == 0 ? "stays with " : "keeps ";
  line += runs_.name;
  if (runs_.kind == AutoCandidate::Kind::kCodec) line += " for all tensors";
  if (chosen == 0 && best != 0) {
    line += ", because " + trials_[best].what.name + " gains less than " +
            in_percent(options_.min_gain);
  }
  line += ": " + figures() + "; " + cost;
  state_ = (raw ? "none: " : "") + line;
  host_.say("auto: " + line);
  enter(Phase::kStay);
  return {};
}

Status Autopilot::look_for_drift() {
  const unsigned window = std::max(1U, options_.window);
  // A second look comes soon: a burst of load ends, a drift does not.
  const unsigned interval =
      suspects_drift_ ? kSettling + window : std::max({1U, options_.drift_interval, kSettling + 1});
  if (steps_ < interval) return {};
  // The last steps alone: the machine may have been in another state before.
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
  const bool suspected = std::exchange(suspects_drift_, slower || faster);
  if (!suspects_drift_ || !suspected) return {};
  suspects_drift_ = false;
  host_.say("auto: a step takes " + in_ms(*median) + " instead of " + in_ms(usual) +
            ": measuring again");
  drifted_ = true;
  state_ = runs_.name + ": watching steps after a drift";
  watch();
  return {};
}

}  // namespace gradpress::engine
