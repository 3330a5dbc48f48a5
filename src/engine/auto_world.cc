#include "engine/auto_world.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
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
/// Of a size in calibration, after one that does not count.
constexpr unsigned kTurns = 3;
/// A codec's next size has eight times the elements, of which it makes two steps, each an encode
/// and a decode, in every turn.
constexpr double kNextCodecSlice = 8.0 * 2.0 * 2.0 * (kTurns + 1);

double us(Time time) { return std::chrono::duration<double, std::micro>(time).count(); }

/// The codecs of a plan, those of most elements first.
std::vector<std::string> codecs_in(const gradpress::Plan& plan) {
  std::map<std::string, std::uint64_t> elements;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.codec != "none") elements[tensor.codec] += tensor.shape.elements();
  }
  std::vector<std::string> codecs;
  codecs.reserve(elements.size());
  for (const auto& [codec, count] : elements) codecs.push_back(codec);
  std::ranges::stable_sort(codecs, std::greater(),
                           [&](const std::string& codec) { return elements[codec]; });
  return codecs;
}

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

std::uint64_t bytes_of(std::span<const TensorSpec> tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const TensorSpec& tensor) {
                           return sum + tensor.shape.elements() * sizeof(float);
                         });
}

}  // namespace

CalibrationOptions calibration_for(std::span<const TensorSpec> tensors,
                                   std::span<const std::string> codecs,
                                   const comm::Topology& topology, double step_us) {
  const std::uint64_t largest = std::ranges::max(tensors, {}, [](const TensorSpec& tensor) {
                                  return tensor.shape.elements();
                                }).shape.elements();
  CalibrationOptions options{.codecs = {codecs.begin(), codecs.end()},
                             .bytes = {1024},
                             .elements = {1024},
                             .turns = kTurns};
  // An all-gather of b bytes a worker moves what a raw step does with 2 b / W of the gradients.
  const std::uint64_t most = bytes_of(tensors) / ((kTurns + std::uint64_t{1}) * topology.workers());
  for (const std::size_t bytes : {16384U, 65536U, 262144U, 1048576U, 4194304U}) {
    if (bytes <= most) options.bytes.push_back(bytes);
  }
  if (options.bytes.size() == 1) options.bytes.push_back(4096);
  for (const std::size_t size : {16384U, 131072U, 1048576U}) {
    if (size <= 2 * largest || options.elements.size() == 1) options.elements.push_back(size);
  }
  const double half_ms = step_us / 2000.0;
  const auto between = [](double least_ms, double wanted_ms, double most_ms) {
    return std::chrono::milliseconds(
        static_cast<std::int64_t>(std::clamp(wanted_ms, least_ms, most_ms)));
  };
  options.turn = between(0.0, half_ms / (kTurns + 1), 3.0);
  // The next size takes at most four times as long, and as many turns. Under a millisecond nothing
  // is left out: too few sizes would give no slope.
  options.longest_call = between(1.0, half_ms / (4 * (kTurns + 1)), 100.0);
  options.longest_codec = between(1.0, half_ms / kNextCodecSlice, 60.0);
  return options;
}

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

Result<bool> AutoWorld::begin_profile(bool may_reuse, double step_us) {
  calibrator_.reset();
  cluster_.reset();
  // What is measured between steps from here on would pass for the next step's forward.
  recorder_.stop();
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
  calibrator_.emplace(fabric_, calibration_for(tensors_, codecs_, fabric_.topology(), step_us),
                      clock_);
  return false;
}

Result<bool> AutoWorld::still_fits(const plan::Cluster& cluster) {
  // All of it is no longer than a raw step.
  const std::uint64_t bytes =
      std::clamp<std::uint64_t>(bytes_of(tensors_) / (kProbeTurns + 1), sizeof(float), kProbeBytes);
  std::vector<float> values(bytes / sizeof(float));
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
  const double expected = line.fixed_us + line.us_per_byte * static_cast<double>(bytes);
  return *taken < kProbeLimit * expected && expected < kProbeLimit * *taken;
}

Result<bool> AutoWorld::continue_profile(double budget_us) {
  // A slice takes half of a step at most: one that begins in the first half ends within it.
  const double end = calibrator_->spent_us() + budget_us / 2.0;
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
  gradpress::Plan plan = plan::public_plan(setting, *made);
  std::vector<std::string> codecs = codecs_in(plan);
  return AutoPlan{.plan = std::move(plan),
                  .compresses = encodes && made->iteration_us < (1.0 - kWorthwhile) * made->raw_us,
                  .raw_us = made->raw_us,
                  .verdict = made->verdict,
                  .codecs = std::move(codecs)};
}

}  // namespace gradpress::engine
