#include "engine/auto_world.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "plan/cost.h"
#include "plan/plan_file.h"
#include "plan/planner.h"

namespace gradpress::engine {

namespace {

/// A plan that is predicted to gain less is not worth a codec's noise.
constexpr double kWorthwhile = 0.02;
/// How far the probe may be off before a profile from before is thrown away.
constexpr double kProbeLimit = 1.5;
constexpr std::size_t kProbeBytes = 262144;
constexpr unsigned kProbeTurns = 3;

double us(Time time) { return std::chrono::duration<double, std::micro>(time).count(); }

std::vector<std::string> codecs_of(const EngineOptions& options) {
  std::vector<std::string> codecs;
  const auto add = [&](const std::string& text) {
    const auto spec = codec::parse_spec(text);
    if (!spec || spec->kind == codec::Kind::kNone) return;
    // Sums on the way are what low-rank payloads live by.
    if (!options.sum_payloads && plan::is_low_rank(spec->kind)) return;
    std::string shortest = codec::to_text(*spec);
    if (std::ranges::find(codecs, shortest) == codecs.end()) codecs.push_back(std::move(shortest));
  };
  for (const std::string& codec : options.automatic.codecs) add(codec);
  for (const CodecRule& rule : options.rules) add(rule.codec);
  return codecs;
}

plan::Policy policy_of(const EngineOptions& options, std::span<const std::string> codecs) {
  plan::Policy policy{.exempt_below_elems = options.least_elements};
  const auto known = [&](const std::string& text) -> std::vector<std::string> {
    const auto spec = codec::parse_spec(text);
    if (!spec) return {};
    const std::string shortest = codec::to_text(*spec);
    if (std::ranges::find(codecs, shortest) == codecs.end()) return {};
    return {shortest};
  };
  for (const CodecRule& rule : options.rules) {
    policy.rules.push_back({.pattern = rule.pattern, .codecs = known(rule.codec)});
  }
  plan::Policy::Rule rest{.pattern = "*", .codecs = {}};
  for (const std::string& codec : options.automatic.codecs) {
    for (std::string& text : known(codec)) rest.codecs.push_back(std::move(text));
  }
  policy.rules.push_back(std::move(rest));
  return policy;
}

}  // namespace

AutoWorld::AutoWorld(sync::Fabric& fabric, Exchange& exchange, std::span<const TensorSpec> tensors,
                     const EngineOptions& options, TraceRecorder& recorder, Clock& clock,
                     AutoActions actions)
    : fabric_(fabric),
      exchange_(exchange),
      tensors_(tensors),
      options_(options),
      recorder_(recorder),
      clock_(clock),
      actions_(std::move(actions)),
      codecs_(codecs_of(options)) {}

Status AutoWorld::check(const EngineOptions& options) {
  for (const std::string& text : options.automatic.codecs) {
    if (const auto spec = codec::parse_spec(text); !spec) {
      return Status::error(Code::kInvalidArgument, "auto: ", spec.error().message());
    }
  }
  for (const CodecRule& rule : options.rules) {
    if (const auto spec = codec::parse_spec(rule.codec); !spec) {
      return Status::error(Code::kInvalidArgument, "rule for \"", rule.pattern,
                           "\": ", spec.error().message());
    }
  }
  return {};
}

ProfileKey AutoWorld::key() const {
  return {.machine = this_machine(),
          .backend = std::string(fabric_.group(plan::Phase::kFlat).backend()),
          .topology = fabric_.topology(),
          .codecs = codecs_};
}

CalibrationOptions AutoWorld::calibration_options() const {
  const std::uint64_t elements = std::accumulate(
      tensors_.begin(), tensors_.end(), std::uint64_t{0},
      [](std::uint64_t sum, const TensorSpec& tensor) { return sum + tensor.shape.elements(); });
  const std::uint64_t largest = std::ranges::max(tensors_, {}, [](const TensorSpec& tensor) {
                                  return tensor.shape.elements();
                                }).shape.elements();
  CalibrationOptions options{.codecs = codecs_, .bytes = {1024, 16384}, .elements = {1024}};
  // One point must not take longer than a step: it is a few calls of an eighth of the model at
  // most.
  for (const std::size_t bytes : {65536U, 262144U, 1048576U, 4194304U}) {
    if (bytes <= elements * sizeof(float) / 8) options.bytes.push_back(bytes);
  }
  for (const std::size_t size : {16384U, 131072U, 1048576U}) {
    if (size <= 2 * largest) options.elements.push_back(size);
  }
  options.turns = 3;
  options.longest_call = std::chrono::milliseconds(100);
  return options;
}

Result<bool> AutoWorld::begin_profile(bool may_reuse) {
  calibrator_.reset();
  cluster_.reset();
  if (may_reuse) {
    auto known = shared_profile(exchange_, profile_file(options_.automatic.cache, key()), key());
    if (!known) return tl::unexpected(known.error());
    if (*known) {
      auto cluster = plan::cluster_from_json(**known, "the cached profile");
      if (cluster) {
        const auto fits = still_fits(*cluster);
        if (!fits) return fits;
        if (*fits) {
          cluster_ = std::move(*cluster);
          return true;
        }
      }
    }
  }
  calibrator_.emplace(fabric_, calibration_options(), clock_);
  return false;
}

Result<bool> AutoWorld::still_fits(const plan::Cluster& cluster) {
  std::vector<float> values(kProbeBytes / sizeof(float));
  std::array<double, kProbeTurns> times{};
  // The first turn does not count.
  for (unsigned turn = 0; turn <= kProbeTurns; ++turn) {
    Status status = exchange_.barrier();
    const Time begin = clock_.now();
    if (status) status = exchange_.to_mean(values);
    if (!status) return tl::unexpected(status);
    if (turn > 0) times[turn - 1] = us(clock_.now() - begin);
  }
  std::ranges::sort(times);
  const auto taken = slowest(times[kProbeTurns / 2]);
  if (!taken) return tl::unexpected(taken.error());
  const auto line =
      plan::CommCosts(cluster).line(plan::Phase::kFlat, plan::Collective::kAllReduce, false);
  const double expected = line.fixed_us + line.us_per_byte * kProbeBytes;
  return *taken < kProbeLimit * expected && expected < kProbeLimit * *taken;
}

Result<bool> AutoWorld::continue_profile(double budget_us) {
  const double end = calibrator_->spent_us() + budget_us;
  do {
    const auto more = calibrator_->advance();
    if (!more) return tl::unexpected(more.error());
    if (*more) continue;
    const Json json = to_cluster_json(calibrator_->result(), "measured by auto", this_machine());
    calibrator_.reset();
    auto cluster = plan::cluster_from_json(json, "the measured profile");
    if (!cluster) return tl::unexpected(cluster.error());
    cluster_ = std::move(*cluster);
    const auto file = profile_file(options_.automatic.cache, key());
    if (file && fabric_.rank() == 0) {
      const Status kept = keep_profile(*file, key(), json);
      if (!kept) say("auto: the profile is not kept: " + kept.message());
    }
    return true;
  } while (calibrator_->spent_us() < end);
  return false;
}

Result<plan::Trace> AutoWorld::agreed_trace() {
  std::vector<float> times = recorder_.mean_ready_us();
  times.push_back(static_cast<float>(recorder_.mean_forward_us()));
  if (Status status = exchange_.to_mean(times); !status) return tl::unexpected(status);
  plan::Trace trace{.model = "this model", .source = {}, .forward_us = times.back(), .tensors = {}};
  std::vector<std::size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t tensor) { return times[tensor]; });
  float last = 0.0F;
  for (const std::size_t tensor : order) {
    trace.tensors.push_back({.name = tensors_[tensor].name,
                             .shape = tensors_[tensor].shape,
                             .elements = tensors_[tensor].shape.elements(),
                             .ready_gap_us = std::max(0.0F, times[tensor] - last)});
    last = std::max(last, times[tensor]);
  }
  return trace;
}

Result<AutoPlan> AutoWorld::make_plan() {
  const auto trace = agreed_trace();
  if (!trace) return tl::unexpected(trace.error());
  std::vector<codec::Spec> specs;
  for (const std::string& text : codecs_) specs.push_back(*codec::parse_spec(text));
  plan::PlanOptions options{.policy = policy_of(options_, codecs_),
                            .fusion = options_.fusion ? plan::Fusion::kAuto : plan::Fusion::kNone};
  options.tree.extended = options_.sum_payloads;
  const plan::Setting setting{*trace, *cluster_, specs};
  const auto made = plan::make_plan(setting, options);
  if (!made) return tl::unexpected(made.error());
  const bool encodes = std::ranges::any_of(
      made->strategy.choices, [](const plan::Choice& choice) { return !choice.option.is_raw(); });
  return AutoPlan{.plan = plan::public_plan(setting, *made),
                  .compresses = encodes && made->iteration_us < (1.0 - kWorthwhile) * made->raw_us,
                  .raw_us = made->raw_us,
                  .verdict = made->verdict};
}

}  // namespace gradpress::engine
