#include <gradpress/engine.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "engine/checkpoint.h"
#include "engine/hand_over.h"
#include "engine/plain_engine.h"
#include "engine/planned.h"
#include "engine/simple_plan.h"
#include "engine/summary.h"
#include "plan/policy.h"
#include "sync/message.h"

namespace gradpress::engine {

namespace {

/// Of raw tensors among threads: two messages and their sums fit a core's second cache.
constexpr std::uint64_t kCachedBucketBytes = 1'000'000;

std::vector<std::vector<std::string>> action_texts(const Program& program) {
  std::vector<std::vector<std::string>> texts;
  for (const sync::MessageSpec& message : program.messages) {
    auto& stages = texts.emplace_back();
    for (const plan::Action& action : message.option.actions()) {
      stages.push_back(plan::to_text(action));
    }
  }
  return texts;
}

}  // namespace

Status PlainEngine::start() {
  if (options_.plan) {
    return install(programs_of(*options_.plan, tensors_, fabric_->topology(), options_.seed),
                   "plan");
  }
  if (options_.codec == kAuto) return start_auto();
  return install(codec_programs(options_.codec), options_.codec);
}

Result<Programs> PlainEngine::codec_programs(std::string_view codec) const {
  std::vector<std::string> codecs;
  for (const TensorSpec& tensor : tensors_) {
    const auto rule = std::ranges::find_if(options_.rules, [&](const CodecRule& candidate) {
      return plan::matches(candidate.pattern, tensor.name);
    });
    codecs.push_back(rule == options_.rules.end() ? std::string(codec) : rule->codec);
  }
  return simple_programs(codecs);
}

Result<Programs> PlainEngine::raw_programs() const {
  return simple_programs(std::vector<std::string>(tensors_.size(), "none"));
}

std::uint64_t PlainEngine::raw_bucket_bytes() const {
  if (options_.raw_bucket_bytes > 0) return options_.raw_bucket_bytes;
  const bool threads = fabric_->group(plan::Phase::kFlat).backend() == "local";
  return threads ? std::min(kCachedBucketBytes, options_.bucket_bytes) : options_.bucket_bytes;
}

Result<Programs> PlainEngine::simple_programs(const std::vector<std::string>& codecs) const {
  auto messages = simple_plan(tensors_, codecs, fabric_->topology(),
                              {.fusion = options_.fusion,
                               .sum_payloads = options_.sum_payloads,
                               .least_elements = options_.least_elements,
                               .bucket_bytes = options_.bucket_bytes,
                               .raw_bucket_bytes = raw_bucket_bytes(),
                               .seed = options_.seed});
  if (!messages) return tl::unexpected(messages.error());
  Programs programs{.first = {.messages = std::move(*messages)}};
  programs.first.order = natural_order(programs.first.messages, fabric_->topology());
  return programs;
}

Status PlainEngine::make_runtimes(const Programs& programs,
                                  std::vector<std::unique_ptr<Runtime>>& made,
                                  RuntimeShared& shared) const {
  for (const Program* program : {&programs.first, programs.second ? &*programs.second : nullptr}) {
    if (program == nullptr) continue;
    auto runtime = Runtime::make(*program, *fabric_,
                                 {.pipelining = options_.pipelining,
                                  .allow_unused = options_.allow_unused,
                                  .record_spans = options_.record_spans,
                                  .on_work = options_.on_work,
                                  .count_messages = options_.strict},
                                 clock_, &shared);
    if (!runtime) return runtime.error();
    made.push_back(std::move(*runtime));
  }
  shared.reserve();
  return {};
}

Status PlainEngine::install(Result<Programs> programs, std::string running, Before before) {
  Group& world = fabric_->group(plan::Phase::kFlat);
  std::vector<std::unique_ptr<Runtime>> made;
  RuntimeShared shared;
  Status mine = programs ? Status() : programs.error();
  if (mine) {
    for (Program* program : {&programs->first, programs->second ? &*programs->second : nullptr}) {
      if (program == nullptr) continue;
      for (sync::MessageSpec& message : program->messages) {
        message.feedback = options_.feedback;
        if (options_.momentum) message.momentum = momentum_options(*options_.momentum);
      }
    }
    mine = make_runtimes(*programs, made, shared);
  }
  std::string description;
  for (const auto& runtime : made) description += description_of(*runtime);
  // A rank that cannot go on says so: the others must not wait for it.
  if (!mine) description = "cannot run " + running + ": " + mine.message() + "\n";
  const Status agreed = sync::check_agreement(world, description);
  if (!mine) return mine;
  if (!agreed) return agreed;
  if (!now_.runtimes.empty() && before == Before::kHandOver) {
    const Status moved = hand_over(*now_.runtimes.front(), *made.front(),
                                   velocity_ ? &*velocity_ : nullptr, exchange_);
    if (!moved) return moved;
  } else if (!now_.runtimes.empty()) {
    parked_.insert_or_assign(candidate_, std::move(now_));
  }
  now_ = {.description = std::move(description),
          .programs = std::move(*programs),
          .runtimes = std::move(made),
          .shared = std::move(shared)};
  running_ = std::move(running);
  begin_anew();
  say_what_is_not_in_effect();
  return {};
}

void PlainEngine::begin_anew() {
  audit_.start_over();
  spans_.clear();
  actions_.clear();
  last_turn_ = 0;
  if (!options_.record_spans) return;
  for (const auto& runtime : now_.runtimes) actions_.push_back(action_texts(runtime->program()));
}

void PlainEngine::say_what_is_not_in_effect() const {
  const bool encodes = std::ranges::any_of(
      now_.programs.first.messages,
      [](const sync::MessageSpec& message) { return !message.option.is_raw(); });
  if (fabric_->topology().workers() == 1) {
    say("one worker: nothing is exchanged, " + running_ + " is not in effect on the wire");
  } else if (!encodes && running_ == "plan") {
    say("the plan compresses no tensor");
  } else if (!encodes && running_ != "none" && running_ != kAuto) {
    say(running_ + " is not in effect: no tensor can take it or is large enough (at least " +
        std::to_string(options_.least_elements) + " elements)");
  }
}

Status PlainEngine::begin_if_due() {
  if (in_step_) return {};
  if (Status status = runtime().begin(step_); !status) return status;
  in_step_ = true;
  return {};
}

Status PlainEngine::take_ready(std::size_t tensor, std::span<float> gradient) {
  if (tensor >= tensors_.size()) {
    return Status::error(Code::kInvalidArgument, "engine: wanted a tensor below ", tensors_.size(),
                         ", got ", tensor);
  }
  const bool records = recorder_.is_recording() || pilot_recorder_.is_recording();
  const Time now = records ? clock_.now() : Time{0};
  if (Status status = begin_if_due(); !status) return status;
  // Codec work may begin at once and change it; a wrong size is the runtime's to refuse.
  if (gradient_recorder_.is_recording() && gradient.size() == tensors_[tensor].shape.elements()) {
    gradient_recorder_.ready(tensor, gradient, tensors_);
  }
  Status status = runtime().ready(static_cast<std::uint32_t>(tensor), gradient);
  if (!records || !status) return status;
  const Time done = clock_.now();
  recorder_.ready(tensor, now, done);
  pilot_recorder_.ready(tensor, now, done);
  return status;
}

Result<EngineStep> PlainEngine::end_step() {
  const Time called = clock_.now();
  if (Status status = begin_if_due(); !status) return tl::unexpected(status);
  const auto report = runtime().wait();
  if (!report) return tl::unexpected(report.error());
  in_step_ = false;
  EngineStep step{.step = step_,
                  .finite = report->outcome == sync::Outcome::kDone && add_momentum(),
                  .sent = report->sent,
                  .promised = report->promised,
                  .exposed_us = report->exposed_us,
                  .unused = report->unused};
  if (options_.record_spans) spans_.assign(report->spans.begin(), report->spans.end());
  const Status audited = audit(*report);
  last_turn_ = now_.turn % now_.runtimes.size();
  // A step that does not count is as if it never was: random numbers and factors come again.
  if (step.finite) {
    ++step_;
    ++now_.turn;
  }
  const Time done = clock_.now();
  gradient_recorder_.end_step();
  recorder_.end_step(called, done);
  pilot_recorder_.end_step(called, done);
  Status status = audited ? steer() : audited;
  if (!status) return tl::unexpected(status);
  step.rests = step.finite && pilot_ && pilot_->rests();
  step.baseline_steps = pilot_ ? pilot_->baseline_steps() : 0;
  return step;
}

bool PlainEngine::add_momentum() {
  if (!velocity_) return true;
  Runtime& current = runtime();
  const auto before = [&](std::uint32_t tensor) {
    const auto [message, member] = current.place_of(tensor);
    return current.message(message).has_momentum(member);
  };
  // All are looked at before any is changed: the step counts for all tensors or for none.
  bool fits = true;
  for (std::uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (velocity_->fits(tensor, current.gradient(tensor), before(tensor))) continue;
    std::ranges::fill(current.gradient(tensor), std::numeric_limits<float>::quiet_NaN());
    fits = false;
  }
  if (!fits) {
    current.rewind();
    return false;
  }
  for (std::uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    velocity_->apply(tensor, current.gradient(tensor), before(tensor));
  }
  return true;
}

Status PlainEngine::audit(const StepReport& report) {
  const auto line = audit_.judge({.step = step_,
                                  .running = running_,
                                  .backend = fabric_->group(plan::Phase::kFlat).backend(),
                                  .program = runtime().program(),
                                  .report = report});
  if (!line) return line.error();
  if (*line) say(**line);
  for (const auto& runtime : now_.runtimes) runtime->count_messages(audit_.counts_messages());
  return {};
}

Status PlainEngine::between_steps(std::string_view what) const {
  if (!in_step_) return {};
  return Status::error(Code::kInvalidArgument, "engine: ", what, " between steps; step ", step_,
                       " has not been waited for");
}

Status PlainEngine::set_codec(std::string_view codec) {
  return guarded([&] {
    if (Status status = between_steps("the codec changes"); !status) return status;
    if (codec == kAuto) return start_auto();
    Status status = drop_candidates();
    if (status) status = install(codec_programs(codec), std::string(codec));
    if (status) pilot_.reset();
    return status;
  });
}

Status PlainEngine::set_plan(const Plan& plan) {
  return guarded([&] {
    if (Status status = between_steps("the plan changes"); !status) return status;
    Status status = drop_candidates();
    if (status) {
      status = install(programs_of(plan, tensors_, fabric_->topology(), options_.seed), "plan");
    }
    if (status) pilot_.reset();
    return status;
  });
}

Plan PlainEngine::plan() const {
  Plan plan = plan_of(now_.programs, tensors_, fabric_->topology());
  plan.strategy = running_;
  return plan;
}

std::vector<EngineSpan> PlainEngine::spans() const {
  std::vector<EngineSpan> spans;
  if (now_.runtimes.empty()) return spans;
  const Program& program = program_of_last_step();
  for (const plan::Span& span : spans_) {
    spans.push_back({.lane = plan::to_text(span.lane),
                     .action = actions_[last_turn_][span.message][span.action],
                     .message = span.message,
                     .tensor = program.messages[span.message].members.front().name,
                     .start_us = span.start_us,
                     .end_us = span.end_us});
  }
  return spans;
}

std::string PlainEngine::summary() const {
  return summary_of(runtime(), running(), step_, fabric_->topology(), options_.sum_payloads);
}

namespace {

Status check_options(const EngineOptions& options) {
  if (!options.momentum) return {};
  const MomentumCorrection& momentum = *options.momentum;
  if (momentum.momentum >= 0.0 && momentum.momentum < 1.0 && momentum.clip_norm >= 0.0 &&
      std::isfinite(momentum.clip_norm)) {
    return {};
  }
  return Status::error(Code::kInvalidArgument,
                       "engine: momentum: wanted a factor from 0 to below 1 and a finite clip norm "
                       "of 0 or more, got ",
                       momentum.momentum, " and ", momentum.clip_norm);
}

Result<std::unique_ptr<Engine>> make_engine(World world, const std::vector<EngineTensor>& tensors,
                                            const EngineOptions& options) {
  if (!world.group) return fail(Code::kInvalidArgument, "engine: wanted a group, got none");
  if (tensors.empty()) return fail(Code::kInvalidArgument, "engine: wanted tensors, got none");
  if (Status status = check_options(options); !status) return tl::unexpected(status);
  std::set<std::string_view> names;
  std::vector<TensorSpec> specs;
  for (const EngineTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return fail(Code::kInvalidArgument, "engine: two tensors are called ", tensor.name);
    }
    specs.push_back({.name = tensor.name, .shape = tensor.shape});
  }
  auto fabric = sync::Fabric::make(
      std::move(world.group),
      {.machines = world.machines, .workers_per_machine = world.workers_per_machine});
  if (!fabric) return tl::unexpected(fabric.error());
  auto made =
      std::make_unique<PlainEngine>(std::move(*fabric), std::move(specs), options, steady_clock());
  if (Status status = made->start(); !status) return tl::unexpected(status);
  return made;
}

}  // namespace

}  // namespace gradpress::engine

namespace gradpress {

Result<std::unique_ptr<Engine>> Engine::make(World world, const std::vector<EngineTensor>& tensors,
                                             const EngineOptions& options) {
  return engine::guarded([&] { return engine::make_engine(std::move(world), tensors, options); });
}

Result<std::vector<std::vector<float>>> checkpoint_residuals(
    std::span<const std::byte> checkpoint) {
  return engine::guarded([&]() -> Result<std::vector<std::vector<float>>> {
    auto saved = engine::Checkpoint::open(checkpoint);
    if (!saved) return tl::unexpected(saved.error());
    return saved->residuals();
  });
}

}  // namespace gradpress
