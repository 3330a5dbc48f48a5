#include <gradpress/engine.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "engine/audit.h"
#include "engine/auto_world.h"
#include "engine/autopilot.h"
#include "engine/checkpoint.h"
#include "engine/exchange.h"
#include "engine/gradients.h"
#include "engine/hand_over.h"
#include "engine/planned.h"
#include "engine/program.h"
#include "engine/recorder.h"
#include "engine/runtime.h"
#include "engine/simple_plan.h"
#include "engine/summary.h"
#include "engine/velocity.h"
#include "plan/plan_file.h"
#include "plan/policy.h"
#include "sync/fabric.h"
#include "sync/message.h"

namespace gradpress {

namespace {

using engine::Program;
using engine::Programs;
using engine::Runtime;

/// Of raw tensors among threads: two messages and their sums fit a core's second cache.
constexpr std::uint64_t kCachedBucketBytes = 1'000'000;

constexpr std::string_view kAuto = "auto";

Status internal(const std::exception& error) {
  return Status::error(Code::kInternal, "engine: ", error.what());
}

/// The public boundary: what is thrown behind it ends as a value, and touches no other engine.
template <class Work>
auto guarded(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    if constexpr (std::is_same_v<decltype(work()), Status>) {
      return internal(error);
    } else {
      return tl::unexpected(internal(error));
    }
  }
}

class PlainEngine final : public Engine {
 public:
  PlainEngine(sync::Fabric fabric, std::vector<engine::TensorSpec> tensors, EngineOptions options,
              Clock& clock)
      : fabric_(std::make_unique<sync::Fabric>(std::move(fabric))),
        tensors_(std::move(tensors)),
        options_(std::move(options)),
        clock_(clock),
        exchange_(fabric_->group(plan::Phase::kFlat)),
        recorder_(tensors_.size()),
        pilot_recorder_(tensors_.size()),
        audit_(options_.strict) {
    if (options_.momentum) {
      velocity_.emplace(*options_.momentum, fabric_->topology().workers(), tensors_.size());
    }
  }
  ~PlainEngine() override {
    std::vector<std::vector<std::unique_ptr<sync::Message>>> messages;
    for (const auto& runtime : now_.runtimes) messages.push_back(runtime->dissolve());
    for (const auto& [name, installed] : parked_) {
      for (const auto& runtime : installed.runtimes) messages.push_back(runtime->dissolve());
    }
    // First the groups, then what they may still write to.
    fabric_.reset();
  }

  /// What the options ask for.
  Status start();

  Status ready(std::size_t tensor, std::span<float> gradient) override {
    return guarded([&] { return take_ready(tensor, gradient); });
  }
  Status progress() override {
    return guarded([&] { return in_step_ ? runtime().progress() : Status(); });
  }
  Result<EngineStep> wait() override {
    return guarded([&] { return end_step(); });
  }
  Status set_codec(std::string_view codec) override;
  Status set_plan(const Plan& plan) override;
  std::string running() const override {
    return pilot_ ? "auto (" + pilot_->state() + ")" : running_;
  }
  Plan plan() const override;
  void scale_residuals(float factor) override;
  void copy_residual(std::size_t tensor, std::span<float> out) const override;
  Status add_residual(std::size_t tensor, std::span<const float> residual) override;
  std::vector<std::byte> checkpoint() const override;
  Status restore(std::span<const std::byte> checkpoint) override;
  void record_trace(unsigned steps) override { recorder_.start(steps); }
  RecordedTrace recorded_trace() const override { return recorder_.trace(tensors_); }
  void record_gradients(unsigned steps) override { gradient_recorder_.start(steps); }
  RecordedGradients recorded_gradients() const override {
    return gradient_recorder_.gradients(tensors_, fabric_->rank(), fabric_->topology().workers());
  }
  std::vector<EngineSpan> spans() const override;
  std::uint64_t buffer_bytes() const override {
    std::uint64_t bytes = now_.shared.bytes();
    for (const auto& [name, installed] : parked_) bytes += installed.shared.bytes();
    return bytes;
  }
  std::string summary() const override;

 private:
  /// Programs that run, or have run and wait to run again.
  struct Installed {
    std::string description = {};
    Programs programs = {};
    std::vector<std::unique_ptr<Runtime>> runtimes = {};  ///< one, or two that take turns
    engine::RuntimeShared shared = {};                    ///< theirs
    std::size_t turn = 0;
  };
  enum class Before : std::uint8_t {
    kHandOver,  ///< what ran before gives its residuals to what runs now, and is destroyed
    kPark,      ///< it is kept as it is, to run again
  };

  Runtime& runtime() const { return *now_.runtimes[now_.turn % now_.runtimes.size()]; }
  const Program& program_of_last_step() const { return now_.runtimes[last_turn_]->program(); }

  Status take_ready(std::size_t tensor, std::span<float> gradient);
  Status begin_if_due();
  Result<EngineStep> end_step();
  /// After the mean, where no sparsifier did. False: a gradient is out of range; the step is then
  /// taken back, on every rank alike.
  bool add_momentum();
  Status start_auto();
  /// Lets the autopilot look at the step that ended.
  Status steer();
  /// Of the step that is ending; the next ones count messages as the audit wants.
  Status audit(const engine::StepReport& report);

  /// `codec`, and what the rules say.
  Result<Programs> codec_programs(std::string_view codec) const;
  Result<Programs> raw_programs() const;
  std::uint64_t raw_bucket_bytes() const;
  Result<Programs> simple_programs(const std::vector<std::string>& codecs) const;
  /// Makes the programs what runs from the next step on, on all ranks or none.
  Status install(Result<Programs> programs, std::string running, Before before = Before::kHandOver);
  /// After another program was put in place.
  void begin_anew();
  /// Runs a candidate of the autopilot's from the next step on.
  Status run_candidate(const engine::AutoCandidate& candidate);
  /// Gives what a parked candidate holds to what runs, and destroys it.
  Status drop_candidate(const std::string& name);
  Status drop_candidates();
  Status make_runtimes(const Programs& programs, std::vector<std::unique_ptr<Runtime>>& made,
                       engine::RuntimeShared& shared) const;
  Status between_steps(std::string_view what) const;
  /// Goes on with the plan of a checkpoint.
  Status run_saved_plan(const std::string& text);
  void say_what_is_not_in_effect() const;
  void say(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  std::unique_ptr<sync::Fabric> fabric_;
  const std::vector<engine::TensorSpec> tensors_;
  const EngineOptions options_;
  Clock& clock_;
  engine::Exchange exchange_;
  std::string running_;
  Installed now_;
  /// The autopilot's candidates that do not run now, by name. Their residuals are this rank's too.
  std::map<std::string, Installed, std::less<>> parked_;
  std::string candidate_;                                       ///< that runs
  std::vector<std::vector<std::vector<std::string>>> actions_;  ///< texts of their stages
  std::optional<engine::Velocity> velocity_;
  engine::TraceRecorder recorder_;        ///< the user's
  engine::TraceRecorder pilot_recorder_;  ///< the autopilot's
  engine::GradientRecorder gradient_recorder_;
  std::vector<plan::Span> spans_;
  std::uint64_t step_ = 0;
  std::size_t last_turn_ = 0;
  bool in_step_ = false;
  engine::ByteAudit audit_;
  std::optional<engine::AutoWorld> auto_world_;
  std::optional<engine::Autopilot> pilot_;  ///< with codec "auto"
  Time steered_{0};                         ///< when the autopilot was done with the last step
};

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

Status PlainEngine::start() {
  if (options_.plan) {
    return install(
        engine::programs_of(*options_.plan, tensors_, fabric_->topology(), options_.seed), "plan");
  }
  if (options_.codec == kAuto) return start_auto();
  return install(codec_programs(options_.codec), options_.codec);
}

Status PlainEngine::start_auto() {
  if (Status status = drop_candidates(); !status) return status;
  Result<Programs> raw = raw_programs();
  if (Status status = engine::AutoWorld::check(options_); !status) raw = tl::unexpected(status);
  if (Status status = install(std::move(raw), std::string(kAuto)); !status) return status;
  if (fabric_->topology().workers() == 1) return {};
  if (!auto_world_) {
    auto_world_.emplace(
        *fabric_, exchange_, tensors_, options_, pilot_recorder_, clock_,
        engine::AutoActions{
            .run = [this](const engine::AutoCandidate& what) { return run_candidate(what); },
            .drop = [this](const std::string& name) { return drop_candidate(name); },
            .say = [this](const std::string& line) { say(line); }});
  }
  pilot_.emplace(options_.automatic, *auto_world_);
  pilot_->start();
  candidate_ = pilot_->runs();
  steered_ = clock_.now();
  return {};
}

Status PlainEngine::run_candidate(const engine::AutoCandidate& candidate) {
  using Kind = engine::AutoCandidate::Kind;
  if (auto known = parked_.find(candidate.name); known != parked_.end()) {
    Installed next = std::move(known->second);
    parked_.erase(known);
    parked_.insert_or_assign(candidate_, std::exchange(now_, std::move(next)));
    begin_anew();
  } else {
    Result<Programs> programs =
        candidate.kind == Kind::kRaw ? raw_programs()
        : candidate.kind == Kind::kCodec
            ? codec_programs(candidate.name)
            : engine::programs_of(candidate.plan, tensors_, fabric_->topology(), options_.seed);
    // To move momentum takes collectives, which residual() and checkpoint() must not: with momentum
    // nothing is parked.
    const Before before = velocity_ ? Before::kHandOver : Before::kPark;
    Status status = install(std::move(programs), std::string(kAuto), before);
    if (!status) return status;
  }
  candidate_ = candidate.name;
  return {};
}

Status PlainEngine::drop_candidate(const std::string& name) {
  const auto known = parked_.find(name);
  if (known == parked_.end()) return {};
  Status status =
      engine::hand_over_residuals(*known->second.runtimes.front(), *now_.runtimes.front());
  if (status) parked_.erase(known);
  return status;
}

Status PlainEngine::drop_candidates() {
  while (!parked_.empty()) {
    const std::string name = parked_.begin()->first;
    if (Status status = drop_candidate(name); !status) return status;
  }
  return {};
}

Status PlainEngine::steer() {
  if (!pilot_) return {};
  const double step_us = std::chrono::duration<double, std::micro>(clock_.now() - steered_).count();
  Status status = pilot_->after_step(step_us);
  steered_ = clock_.now();
  return status;
}

Result<Programs> PlainEngine::codec_programs(std::string_view codec) const {
  std::vector<std::string> codecs;
  for (const engine::TensorSpec& tensor : tensors_) {
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
  auto messages = engine::simple_plan(tensors_, codecs, fabric_->topology(),
                                      {.fusion = options_.fusion,
                                       .sum_payloads = options_.sum_payloads,
                                       .least_elements = options_.least_elements,
                                       .bucket_bytes = options_.bucket_bytes,
                                       .raw_bucket_bytes = raw_bucket_bytes(),
                                       .seed = options_.seed});
  if (!messages) return tl::unexpected(messages.error());
  Programs programs{.first = {.messages = std::move(*messages)}};
  programs.first.order = engine::natural_order(programs.first.messages, fabric_->topology());
  return programs;
}

Status PlainEngine::make_runtimes(const Programs& programs,
                                  std::vector<std::unique_ptr<Runtime>>& made,
                                  engine::RuntimeShared& shared) const {
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
  engine::RuntimeShared shared;
  Status mine = programs ? Status() : programs.error();
  if (mine) {
    for (Program* program : {&programs->first, programs->second ? &*programs->second : nullptr}) {
      if (program == nullptr) continue;
      for (sync::MessageSpec& message : program->messages) {
        message.feedback = options_.feedback;
        if (options_.momentum) message.momentum = engine::momentum_options(*options_.momentum);
      }
    }
    mine = make_runtimes(*programs, made, shared);
  }
  std::string description;
  for (const auto& runtime : made) description += engine::description_of(*runtime);
  // A rank that cannot go on says so: the others must not wait for it.
  if (!mine) description = "cannot run " + running + ": " + mine.message() + "\n";
  const Status agreed = sync::check_agreement(world, description);
  if (!mine) return mine;
  if (!agreed) return agreed;
  if (!now_.runtimes.empty() && before == Before::kHandOver) {
    const Status moved = engine::hand_over(*now_.runtimes.front(), *made.front(),
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

Status PlainEngine::audit(const engine::StepReport& report) {
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
      status =
          install(engine::programs_of(plan, tensors_, fabric_->topology(), options_.seed), "plan");
    }
    if (status) pilot_.reset();
    return status;
  });
}

Plan PlainEngine::plan() const {
  Plan plan = engine::plan_of(now_.programs, tensors_, fabric_->topology());
  plan.strategy = running_;
  return plan;
}

void PlainEngine::scale_residuals(float factor) {
  const auto scale = [&](Runtime& any) {
    for (std::size_t i = 0; i < any.messages(); ++i) any.message(i).scale_residuals(factor);
  };
  scale(*now_.runtimes.front());
  for (const auto& [name, installed] : parked_) scale(*installed.runtimes.front());
  if (velocity_) velocity_->scale(factor);
}

void PlainEngine::copy_residual(std::size_t tensor, std::span<float> out) const {
  const auto copy = [&](Runtime& any, std::span<float> to) {
    const auto [message, member] = any.place_of(static_cast<std::uint32_t>(tensor));
    any.message(message).copy_residual(member, to);
  };
  copy(*now_.runtimes.front(), out);
  std::vector<float> held(parked_.empty() ? 0 : out.size());
  for (const auto& [name, installed] : parked_) {
    copy(*installed.runtimes.front(), held);
    for (std::size_t i = 0; i < held.size(); ++i) out[i] += held[i];
  }
  if (!velocity_) return;
  const std::span<const float> carried = velocity_->carried(tensor);
  for (std::size_t i = 0; i < carried.size(); ++i) out[i] += carried[i];
}

Status PlainEngine::add_residual(std::size_t tensor, std::span<const float> residual) {
  return guarded([&] {
    Runtime& any = *now_.runtimes.front();
    const auto [message, member] = any.place_of(static_cast<std::uint32_t>(tensor));
    return any.message(message).give_residual(member, residual);
  });
}

std::vector<std::byte> PlainEngine::checkpoint() const {
  // A checkpoint is of what runs: candidates that are parked give it what they hold.
  for (const auto& [name, installed] : parked_) {
    const Status moved =
        engine::hand_over_residuals(*installed.runtimes.front(), *now_.runtimes.front());
    if (!moved) say("checkpoint: the residual of " + name + " is not in it: " + moved.message());
  }
  return engine::save_checkpoint({.description = now_.description,
                                  .plan = plan::to_json(plan()).dump(),
                                  .rank = fabric_->rank(),
                                  .step = step_,
                                  .turn = static_cast<std::uint32_t>(now_.turn % 2)},
                                 *now_.runtimes.front(), velocity_ ? &*velocity_ : nullptr);
}

Status PlainEngine::restore(std::span<const std::byte> checkpoint) {
  return guarded([&]() -> Status {
    if (Status status = between_steps("a checkpoint is restored"); !status) return status;
    auto saved = engine::Checkpoint::open(checkpoint);
    if (!saved) return saved.error();
    if (saved->head().rank != fabric_->rank()) {
      return Status::error(Code::kInvalidArgument, "checkpoint: is rank ", saved->head().rank,
                           "'s, this is rank ", fabric_->rank());
    }
    if (Status status = drop_candidates(); !status) return status;
    std::string difference = engine::first_difference(saved->head().description, now_.description);
    if (!difference.empty() && pilot_) {
      // What auto had found then is what goes on.
      if (Status status = run_saved_plan(saved->head().plan); !status) return status;
      difference = engine::first_difference(saved->head().description, now_.description);
    }
    if (!difference.empty()) {
      return Status::error(
          Code::kInvalidArgument,
          "checkpoint: is of other tensors, codecs or another world: ", difference);
    }
    Status status = saved->load(*now_.runtimes.front(), velocity_ ? &*velocity_ : nullptr);
    if (!status) return status;
    step_ = saved->head().step;
    now_.turn = saved->head().turn;
    return {};
  });
}

Status PlainEngine::run_saved_plan(const std::string& text) {
  PlanTarget target{.machines = fabric_->topology().machines,
                    .workers_per_machine = fabric_->topology().workers_per_machine};
  for (const engine::TensorSpec& tensor : tensors_) {
    target.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
  }
  const auto plan = parse_plan(text, "checkpoint", target);
  if (!plan) return plan.error();
  Status status = install(engine::programs_of(*plan, tensors_, fabric_->topology(), options_.seed),
                          std::string(kAuto));
  if (status) {
    pilot_->resume("the checkpoint's plan");
    candidate_ = pilot_->runs();
  }
  return status;
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
  return engine::summary_of(runtime(), running(), step_, fabric_->topology());
}

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
  std::vector<engine::TensorSpec> specs;
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

Result<std::unique_ptr<Engine>> Engine::make(World world, const std::vector<EngineTensor>& tensors,
                                             const EngineOptions& options) {
  return guarded([&] { return make_engine(std::move(world), tensors, options); });
}

Result<std::vector<std::vector<float>>> checkpoint_residuals(
    std::span<const std::byte> checkpoint) {
  return guarded([&]() -> Result<std::vector<std::vector<float>>> {
    auto saved = engine::Checkpoint::open(checkpoint);
    if (!saved) return tl::unexpected(saved.error());
    return saved->residuals();
  });
}

}  // namespace gradpress
