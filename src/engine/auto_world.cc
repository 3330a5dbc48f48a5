#include "engine/auto_world.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "engine/simple_plan.h"
#include "plan/cost.h"
#include "plan/plan_file.h"
#include "plan/planner.h"
#include "plan/timeline.h"
#include "spec/facts.h"

namespace gradpress::engine {

namespace {

/// How far the probe may be off before a profile from before is thrown away.
constexpr double kProbeLimit = 1.5;
constexpr std::size_t kProbeBytes = 262144;
constexpr unsigned kProbeTurns = 3;
/// Of a size in calibration, after one that does not count.
constexpr unsigned kTurns = 3;
/// A codec's next size has eight times the elements, of which it makes two steps, each an encode
/// and a decode, in every turn.
constexpr double kNextCodecSlice = 8.0 * 2.0 * 2.0 * (kTurns + 1);

/// Predictions this close are alike to a measurement: fewer messages cost the processor less.
constexpr double kAlike = 0.01;
/// A smaller predicted gain is lost in the noise of steps.
constexpr double kLeastGain = 0.02;

double us(Time time) { return std::chrono::duration<double, std::micro>(time).count(); }

std::vector<std::string> codecs_of(const EngineOptions& options) {
  std::vector<std::string> codecs;
  const auto add = [&](const std::string& text) {
    const auto spec = codec::parse_spec(text);
    if (!spec || !codec::facts_of(*spec).encodes()) return;
    // Sums on the way are what low-rank payloads live by.
    if (!options.sum_payloads && codec::facts_of(*spec).is_low_rank()) return;
    std::string shortest = codec::to_text(*spec);
    if (std::ranges::find(codecs, shortest) == codecs.end()) codecs.push_back(std::move(shortest));
  };
  for (const std::string& codec : options.automatic.codecs) add(codec);
  for (const CodecRule& rule : options.rules) add(rule.codec);
  return codecs;
}

/// What the planner may choose from: `codecs`, where the options allow them.
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
                                   const comm::Topology& topology, double step_us,
                                   double limit_us) {
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
  options.limit_us = limit_us;
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
  const AutoOptions& automatic = options.automatic;
  if (!(automatic.min_gain >= 0.0 && automatic.min_gain < 1.0) ||
      !(automatic.settle_steps >= 0.0 && std::isfinite(automatic.settle_steps))) {
    return Status::error(Code::kInvalidArgument,
                         "auto: wanted a min_gain from 0 to below 1 and a finite settle_steps of 0 "
                         "or more, got ",
                         automatic.min_gain, " and ", automatic.settle_steps);
  }
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

double AutoWorld::now_us() { return us(clock_.now()); }

Result<double> AutoWorld::compute_us() { return exchange_.slowest(recorder_.median_compute_us()); }

Result<bool> AutoWorld::begin_profile(bool may_reuse, double step_us, double limit_us) {
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
          if (fabric_.rank() == 0) {
            say("auto: uses the measured links and codecs in " +
                profile_file(options_.automatic.cache, key())->string());
          }
          return true;
        }
      }
    }
  }
  calibrator_.emplace(
      fabric_, calibration_for(tensors_, codecs_, fabric_.topology(), step_us, limit_us), clock_);
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
      say(kept ? "auto: keeps the measured links and codecs in " + file->string()
               : "auto: does not keep the measured links and codecs: " + kept.message());
    }
    return true;
  } while (calibrator_->spent_us() < end);
  return false;
}

Result<plan::Trace> AutoWorld::agreed_trace() {
  std::vector<float> times = recorder_.median_ready_us();
  times.push_back(static_cast<float>(recorder_.median_forward_us()));
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

Result<double> AutoWorld::predict_codec(const plan::Setting& setting,
                                        const std::string& codec) const {
  std::vector<std::string> codecs;
  for (const TensorSpec& tensor : tensors_) {
    const auto rule = std::ranges::find_if(options_.rules, [&](const CodecRule& candidate) {
      return plan::matches(candidate.pattern, tensor.name);
    });
    codecs.push_back(rule == options_.rules.end() ? codec : rule->codec);
  }
  const auto messages = simple_plan(tensors_, codecs, fabric_.topology(),
                                    {.fusion = options_.fusion,
                                     .sum_payloads = options_.sum_payloads,
                                     .least_elements = options_.least_elements,
                                     .bucket_bytes = options_.bucket_bytes,
                                     .raw_bucket_bytes = options_.bucket_bytes});
  const auto raw = simple_plan(tensors_, "none", fabric_.topology(), {});
  if (!messages || !raw) return tl::unexpected(messages ? raw.error() : messages.error());
  struct Way {
    std::size_t message;
    plan::Choice choice;
  };
  std::map<std::string_view, Way, std::less<>> ways;
  for (std::size_t i = 0; i < messages->size(); ++i) {
    for (const sync::Member& member : (*messages)[i].members) {
      const auto spec = std::ranges::find_if(setting.codecs, [&](const codec::Spec& known) {
        return codec::to_text(known) == member.codec;
      });
      // Raw members of an encoded message are priced as a message of their own.
      const bool is_raw = spec == setting.codecs.end();
      const auto index = is_raw ? 0 : spec - setting.codecs.begin();
      ways[tensors_[member.tensor].name] = {
          .message = 2 * i + (is_raw ? 1 : 0),
          .choice = {.option = is_raw ? raw->front().option : (*messages)[i].option,
                     .codec = static_cast<std::uint8_t>(index)}};
    }
  }
  plan::Strategy strategy;
  std::map<std::size_t, std::uint32_t> buckets;
  for (const plan::Tensor& tensor : setting.trace.tensors) {
    const Way& way = ways.at(tensor.name);
    const auto bucket = buckets.emplace(way.message, static_cast<std::uint32_t>(buckets.size()));
    strategy.choices.push_back(way.choice);
    strategy.buckets.of_tensor.push_back(bucket.first->second);
  }
  strategy.buckets.count = static_cast<std::uint32_t>(buckets.size());
  const bool encodes = std::ranges::any_of(
      strategy.choices, [](const plan::Choice& choice) { return !choice.option.is_raw(); });
  return encodes ? plan::predict_us(setting, strategy) : 0.0;
}

Result<AutoPlan> AutoWorld::make_plan() {
  const auto trace = agreed_trace();
  if (!trace) return tl::unexpected(trace.error());
  std::vector<codec::Spec> specs;
  for (const std::string& text : codecs_) specs.push_back(*codec::parse_spec(text));
  const plan::Setting setting{*trace, *cluster_, specs};
  const auto encodes = [](const plan::Plan& plan) {
    return std::ranges::any_of(plan.strategy.choices,
                               [](const plan::Choice& choice) { return !choice.option.is_raw(); });
  };
  plan::PlanOptions options{.policy = policy_of(options_, codecs_),
                            .fusion = options_.fusion ? plan::Fusion::kAuto : plan::Fusion::kNone,
                            .alike = kAlike,
                            .least_gain = kLeastGain};
  options.tree.extended = options_.sum_payloads;
  const auto best = plan::make_plan(setting, options);
  if (!best) return tl::unexpected(best.error());
  AutoPlan made{.raw_us = best->raw_us, .verdict = best->verdict};
  for (const std::string& text : options_.automatic.codecs) {
    const auto spec = codec::parse_spec(text);
    const std::string codec = spec ? codec::to_text(*spec) : "none";
    if (std::ranges::find(codecs_, codec) == codecs_.end()) continue;
    const auto predicted = predict_codec(setting, codec);
    if (!predicted) return tl::unexpected(predicted.error());
    made.candidates.push_back(
        {.kind = AutoCandidate::Kind::kCodec, .name = codec, .predicted_us = *predicted});
  }
  ++plans_;
  if (encodes(*best)) {
    made.candidates.push_back({.kind = AutoCandidate::Kind::kPlan,
                               .name = plans_ == 1 ? "the plan" : "plan " + std::to_string(plans_),
                               .plan = plan::public_plan(setting, *best),
                               .predicted_us = best->iteration_us});
  }
  return made;
}

}  // namespace gradpress::engine
