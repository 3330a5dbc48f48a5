#include "worker.h"

#include <gradpress/ddp.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "checkpoint.h"
#include "compression.h"
#include "optimizer.h"
#include "random.h"
#include "sampler.h"
#include "schedules.h"

namespace gradpress::trainer {

namespace {

constexpr std::int64_t kTestBatch = 250;
/// How long an interrupt may wait for the step at which all ranks look for it. A look is a message
/// of a few bytes, which would be felt in steps of a millisecond.
constexpr double kAskEveryS = 0.2;
constexpr double kMostUnasked = 1000.0;
/// Far from the sampler's, which counts epochs.
constexpr std::uint64_t kDropoutPurpose = 1ULL << 63U;

using Seconds = std::chrono::duration<double>;
double now_s() { return Seconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// FNV-1a over the bits: tells whether replicas, or two runs, are the same.
std::uint64_t fingerprint_of(const NamedTensors& tensors) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const auto& [name, tensor] : tensors) {
    const auto whole = tensor.detach().contiguous();
    const auto* byte = static_cast<const unsigned char*>(whole.data_ptr());
    for (std::size_t i = 0; i < whole.nbytes(); ++i) hash = (hash ^ byte[i]) * 1099511628211ULL;
  }
  return hash;
}

double compressed_share(const Plan& plan) {
  double all = 0.0;
  double compressed = 0.0;
  for (const PlannedTensor& tensor : plan.tensors) {
    const auto elements = static_cast<double>(tensor.shape.elements());
    all += elements;
    if (tensor.codec != "none") compressed += elements;
  }
  return all > 0.0 ? compressed / all : 0.0;
}

NamedTensors parameters_of(const Model& model) {
  NamedTensors parameters;
  for (const auto& item : model.named_parameters()) {
    parameters.emplace_back(item.key(), item.value());
  }
  return parameters;
}

/// What a run must have in common with the one it goes on from.
std::string identity_of(const Settings& settings, unsigned workers) {
  std::ostringstream text;
  const ModelSettings& model = settings.model;
  text << model.name << " width " << model.width << " layers " << model.layers << " hidden "
       << model.hidden << " heads " << model.heads << ", " << settings.data.source << ", "
       << settings.optimizer.name << ", " << workers << " workers, batch " << settings.batch
       << " x " << settings.accumulate << ", seed " << settings.seed << ", codec "
       << (settings.compression.plan.empty() ? settings.compression.codec
                                             : settings.compression.plan);
  if (model.dropout > 0.0) text << ", dropout " << model.dropout;
  if (settings.compression.rate_correction) text << ", rate correction";
  return text.str();
}

class Worker {
 public:
  Worker(const Shared& shared, std::shared_ptr<Model> model)
      : shared_(shared),
        settings_(shared.settings),
        model_(std::move(model)),
        parameters_(parameters_of(*model_)) {}

  Result<Record> run(World world);

 private:
  struct StepCost {
    double ms = 0.0;
    double exposed_ms = 0.0;
    double bytes = 0.0;
  };

  Status prepare(World world);
  Status resume();
  Status check_same_step();
  Result<double> step();
  double rate_at(std::int64_t step) const;
  /// Residuals are in units of the gradient: what steps of another rate left is applied with that
  /// rate.
  void correct_residuals();
  /// Its own for every backward of every worker; a run that goes on draws what it would have drawn.
  std::uint64_t dropout_seed(std::int64_t part) const;
  Status change_codec();
  /// Whether anyone asked for an end; the same answer everywhere. Sets stopping_ and asks_at_.
  Status agree_to_stop();
  /// Means over the workers of what happened since the last log.
  Status log(bool evaluates);
  Result<double> evaluate();
  Status save();
  Status finish();
  Status compare_replicas();
  NamedTensors all_tensors();
  bool reached(double value) const {
    return settings_.time_to > 0.0 &&
           (value == settings_.time_to || is_better(record_.metric, value, settings_.time_to));
  }
  bool speaks() const { return ddp_->rank() == 0; }
  std::span<const StepCost> later_half() const {
    return std::span(costs_).subspan(costs_.size() / 2);
  }

  const Shared& shared_;
  const Settings& settings_;
  std::shared_ptr<Model> model_;
  NamedTensors parameters_;

  std::unique_ptr<ddp::DataParallel> ddp_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<Sampler> sampler_;
  std::optional<CodecSchedule> codecs_;
  std::int64_t steps_ = 0;  // of the whole run
  std::int64_t eval_every_ = 0;

  Position position_;
  Record record_;
  std::vector<StepCost> costs_;
  double loss_sum_ = 0.0;   // since the last log
  std::size_t logged_ = 0;  // steps of costs_ that were logged
  bool stopping_ = false;
  std::int64_t asks_at_ = 0;  // the step after which workers agree on stopping
};

NamedTensors Worker::all_tensors() {
  NamedTensors tensors = parameters_;
  for (const auto& item : model_->named_buffers()) {
    tensors.emplace_back("buffer/" + item.key(), item.value());
  }
  for (auto& [name, tensor] : optimizer_->state()) {
    tensors.emplace_back("optimizer/" + name, tensor);
  }
  return tensors;
}

Status Worker::prepare(World world) {
  const unsigned workers = world.group->size();
  const unsigned rank = world.group->rank();
  sampler_.emplace(SamplerOptions{.samples = shared_.data.train_samples(),
                                  .batch = settings_.batch,
                                  .accumulate = settings_.accumulate,
                                  .workers = workers,
                                  .rank = rank,
                                  .seed = settings_.seed});
  const std::int64_t per_epoch = sampler_->steps_per_epoch();
  if (per_epoch == 0) {
    return Status::error(Code::kInvalidArgument, "a step takes ", sampler_->samples_per_step(),
                         " samples (--batch x --accumulate x workers), the data has only ",
                         shared_.data.train_samples());
  }
  steps_ = settings_.steps > 0
               ? settings_.steps
               : std::max<std::int64_t>(
                     std::llround(settings_.epochs * static_cast<double>(per_epoch)), 1);
  eval_every_ = settings_.eval_every > 0 ? settings_.eval_every : per_epoch;
  auto codecs = CodecSchedule::make(settings_.compression, per_epoch);
  if (!codecs) return codecs.error();
  codecs_.emplace(std::move(*codecs));

  position_.identity = identity_of(settings_, workers);
  record_.workers = workers;
  record_.metric = shared_.data.shape().is_text() ? "perplexity" : "accuracy";
  for (const auto& [name, parameter] : parameters_) {
    record_.parameters += static_cast<std::uint64_t>(parameter.numel());
  }
  // The engine that goes on is the one that was left: with the codec of the last step done.
  std::int64_t last_done = 0;
  if (!settings_.resume.empty()) {
    const auto saved =
        read_checkpoint(checkpoint_file(settings_.resume, rank), position_.identity, parameters_);
    if (!saved) return saved.error();
    last_done = std::max<std::int64_t>(saved->step - 1, 0);
  }
  auto compression = choose_compression({.settings = settings_,
                                         .codec = codecs_->codec_at(last_done),
                                         .parameters = parameters_,
                                         .world = world});
  if (!compression) return compression.error();
  if (rank == 0) {
    compression->options.engine.log = [this](std::string_view line) { shared_.console.say(line); };
    if (!compression->message.empty()) shared_.console.say(compression->message);
  }
  auto optimizer =
      make_optimizer(settings_.optimizer, parameters_, compression->engine_has_momentum);
  if (!optimizer) return optimizer.error();
  optimizer_ = std::move(*optimizer);
  auto ddp = ddp::DataParallel::make(model_, std::move(world), compression->options);
  if (!ddp) return ddp.error();
  ddp_ = std::move(*ddp);
  return settings_.resume.empty() ? Status() : resume();
}

Status Worker::resume() {
  auto position = read_checkpoint(checkpoint_file(settings_.resume, ddp_->rank()),
                                  position_.identity, all_tensors());
  if (!position) return position.error();
  position_ = std::move(*position);
  if (Status status = check_same_step(); !status) return status;
  if (Status status = ddp_->engine().restore(position_.engine); !status) return status;
  position_.engine.clear();
  record_.history = position_.history;
  for (const HistoryPoint& point : record_.history) {
    if (!point.metric_value) continue;
    record_.metric_value = point.metric_value;
    if (!record_.best_value ||
        is_better(record_.metric, *point.metric_value, *record_.best_value)) {
      record_.best_value = point.metric_value;
    }
  }
  if (speaks()) {
    shared_.console.say("goes on after step " + std::to_string(position_.step) + " of " +
                        std::to_string(steps_));
  }
  return {};
}

Status Worker::check_same_step() {
  const auto own = static_cast<double>(position_.step);
  std::array<double, 1> mean = {own};
  if (Status status = ddp_->mean(mean); !status) return status;
  std::array<double, 1> differs = {mean[0] == own ? 0.0 : 1.0};
  if (Status status = ddp_->mean(differs); !status) return status;
  if (differs[0] == 0.0) return {};
  return Status::error(Code::kInvalidArgument, settings_.resume,
                       ": ranks were saved at different steps, this one after ", position_.step);
}

Status Worker::change_codec() {
  const std::int64_t step = position_.step;
  if (step == 0) return {};
  const std::string& codec = codecs_->codec_at(step);
  if (codec == codecs_->codec_at(step - 1)) return {};
  if (speaks()) {
    shared_.console.say("step " + std::to_string(step) + ": the codec is now " + codec);
  }
  return ddp_->engine().set_codec(codec);
}

double Worker::rate_at(std::int64_t step) const {
  return learning_rate(settings_.optimizer, settings_.schedule, step, steps_);
}

void Worker::correct_residuals() {
  if (!settings_.compression.rate_correction || position_.step == 0) return;
  const double before = rate_at(position_.step - 1);
  const double now = rate_at(position_.step);
  // A rate of 0 applies nothing.
  if (before == now || before <= 0.0 || now <= 0.0) return;
  ddp_->engine().scale_residuals(static_cast<float>(before / now));
}

std::uint64_t Worker::dropout_seed(std::int64_t part) const {
  const auto backward =
      static_cast<std::uint64_t>(position_.step * settings_.accumulate + part) * ddp_->workers();
  return Random(settings_.seed, kDropoutPurpose + backward + ddp_->rank()).next();
}

/// Returns this worker's loss.
Result<double> Worker::step() {
  if (Status status = change_codec(); !status) return tl::unexpected(status);
  correct_residuals();
  const double began = now_s();
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad() = torch::Tensor();
  double loss_sum = 0.0;
  for (std::int64_t part = 0; part < settings_.accumulate; ++part) {
    std::optional<ddp::DataParallel::NoSync> no_sync;
    if (part + 1 < settings_.accumulate) no_sync.emplace(*ddp_);
    const Batch batch = shared_.data.train_batch(sampler_->indices(position_.step, part));
    model_->seed_dropout(dropout_seed(part));
    auto loss = torch::nll_loss(torch::log_softmax(model_->forward(batch.inputs), 1),
                                batch.targets.flatten());
    if (settings_.accumulate > 1) loss = loss / static_cast<double>(settings_.accumulate);
    loss.backward();
    loss_sum += loss.item<double>();
  }
  const auto done = ddp_->synchronise();
  if (!done) return tl::unexpected(done.error());
  if (done->finite) {
    optimizer_->step(rate_at(position_.step));
  } else {
    ++position_.skipped_steps;
  }
  const double seconds = now_s() - began;
  const auto bytes = static_cast<double>(done->sent.intra + done->sent.inter);
  costs_.push_back({.ms = 1e3 * seconds, .exposed_ms = 1e-3 * done->exposed_us, .bytes = bytes});
  position_.seconds += seconds;
  position_.wire_bytes += bytes;
  ++position_.step;
  return loss_sum;
}

Status Worker::agree_to_stop() {
  std::array<double, 2> means = {shared_.stop.load() ? 1.0 : 0.0, 1e-3 * costs_.back().ms};
  if (Status status = ddp_->mean(means); !status) return status;
  stopping_ = means[0] > 0.0;
  // From the agreed time of a step, so that all ask after the same one. A frozen process has steps
  // of no use for that, hence the limit.
  const double steps = std::clamp(kAskEveryS / std::max(means[1], 1e-6), 1.0, kMostUnasked);
  asks_at_ = position_.step + std::llround(steps);
  return {};
}

Status Worker::log(bool evaluates) {
  const std::size_t fresh = costs_.size() - logged_;
  std::array<double, 1> means = {loss_sum_ / static_cast<double>(fresh)};
  if (Status status = ddp_->mean(means); !status) return status;
  HistoryPoint point{.step = position_.step, .seconds = position_.seconds, .loss = means[0]};
  if (evaluates) {
    const auto value = evaluate();
    if (!value) return value.error();
    point.metric_value = *value;
    record_.metric_value = *value;
    if (!record_.best_value || is_better(record_.metric, *value, *record_.best_value)) {
      record_.best_value = *value;
    }
    if (!record_.seconds_to_target && reached(*value)) {
      record_.seconds_to_target = position_.seconds;
      stopping_ = true;
    }
  }
  record_.history.push_back(point);
  StepCost sum;
  for (std::size_t i = logged_; i < costs_.size(); ++i) {
    sum.ms += costs_[i].ms;
    sum.exposed_ms += costs_[i].exposed_ms;
    sum.bytes += costs_[i].bytes;
  }
  const auto count = static_cast<double>(fresh);
  if (speaks()) {
    shared_.console.show(
        {.step = position_.step,
         .steps = steps_,
         .loss = means[0],
         .samples_per_s = 1e3 * count * static_cast<double>(sampler_->samples_per_step()) / sum.ms,
         .bytes_per_step = sum.bytes / count,
         .exposed_ms = sum.exposed_ms / count,
         .metric = record_.metric,
         .metric_value = record_.metric_value.value_or(0.0),
         .has_metric = record_.metric_value.has_value(),
         .evaluated = point.metric_value.has_value()});
  }
  loss_sum_ = 0.0;
  logged_ = costs_.size();
  return {};
}

/// Every worker its share of the test; the same value on all.
Result<double> Worker::evaluate() {
  const torch::NoGradGuard guard;
  model_->eval();
  const std::int64_t samples = shared_.data.test_samples();
  const auto workers = static_cast<std::int64_t>(ddp_->workers());
  const auto rank = static_cast<std::int64_t>(ddp_->rank());
  const std::int64_t end = samples * (rank + 1) / workers;
  std::array<double, 3> sums = {0.0, 0.0, 0.0};  // targets, right answers, losses
  for (std::int64_t i = samples * rank / workers; i < end; i += kTestBatch) {
    const Batch batch = shared_.data.test_batch(i, std::min(i + kTestBatch, end));
    const auto targets = batch.targets.flatten();
    const auto scores = torch::log_softmax(model_->forward(batch.inputs), 1);
    sums[0] += static_cast<double>(targets.numel());
    sums[1] += scores.argmax(1).eq(targets).sum().item<double>();
    sums[2] += torch::nll_loss(scores, targets, {}, at::Reduction::Sum).item<double>();
  }
  model_->train();
  if (Status status = ddp_->mean(sums); !status) return tl::unexpected(status);
  if (record_.metric == "perplexity") return std::exp(sums[2] / sums[0]);
  return 100.0 * sums[1] / sums[0];
}

Status Worker::save() {
  position_.history = record_.history;
  position_.engine = ddp_->engine().checkpoint();
  const std::string file = checkpoint_file(settings_.save, ddp_->rank());
  Status written = write_checkpoint(file, all_tensors(), position_);
  position_.engine.clear();
  std::array<double, 1> failed = {written.is_ok() ? 0.0 : 1.0};
  if (Status status = ddp_->mean(failed); !status) return status;
  if (!written) return written;
  if (failed[0] > 0.0) {
    return Status::error(Code::kPeerLost, "another rank could not write its checkpoint");
  }
  return finish_checkpoint(file);
}

Status Worker::compare_replicas() {
  record_.fingerprint = fingerprint_of(parameters_);
  // Sums of 32-bit numbers are exact.
  const auto own = static_cast<double>(record_.fingerprint >> 32);
  std::array<double, 1> mean = {own};
  if (Status status = ddp_->mean(mean); !status) return status;
  std::array<double, 1> differs = {mean[0] == own ? 0.0 : 1.0};
  if (Status status = ddp_->mean(differs); !status) return status;
  if (differs[0] == 0.0) return {};
  return Status::error(Code::kInternal, "after step ", position_.step,
                       " the workers' parameters differ");
}

Status Worker::finish() {
  Engine& engine = ddp_->engine();
  record_.steps = position_.step;
  record_.skipped_steps = position_.skipped_steps;
  record_.wire_bytes_total = position_.wire_bytes;
  std::vector<double> times;
  std::vector<double> exposed;
  for (const StepCost& cost : later_half()) {
    times.push_back(cost.ms);
    exposed.push_back(cost.exposed_ms);
    record_.wire_bytes_per_step += cost.bytes / static_cast<double>(later_half().size());
  }
  record_.step_ms = median(times);
  record_.exposed_ms = median(exposed);
  record_.plan = engine.summary();
  record_.running = engine.running();
  record_.warm_steps = codecs_->warm_steps();
  record_.compressed_share = compressed_share(engine.plan());
  for (const EngineSpan& span : engine.spans()) {
    record_.spans.push_back({.lane = std::string(span.lane),
                             .action = std::string(span.action),
                             .tensor = std::string(span.tensor),
                             .start_us = span.start_us,
                             .end_us = span.end_us});
  }
  if (!settings_.save.empty()) {
    if (Status status = save(); !status) return status;
  }
  if (Status status = compare_replicas(); !status) return status;
  if (!speaks()) return {};
  if (!settings_.record_trace.empty()) {
    if (Status status =
            write_trace(settings_.record_trace, settings_.model.name, engine.recorded_trace());
        !status) {
      return status;
    }
  }
  if (!settings_.write_plan.empty()) {
    if (Status status = save_plan(settings_.write_plan, engine.plan()); !status) return status;
  }
  if (!settings_.record_gradients.empty()) {
    const Status status = write_gradients(settings_.record_gradients, engine.recorded_gradients());
    if (!status) return status;
  }
  return settings_.json.empty() ? Status() : write_record(settings_.json, settings_, record_);
}

Result<Record> Worker::run(World world) {
  if (Status status = prepare(std::move(world)); !status) return tl::unexpected(status);
  if (!settings_.record_trace.empty()) ddp_->engine().record_trace(settings_.trace_steps);
  if (!settings_.record_gradients.empty() && speaks()) {
    ddp_->engine().record_gradients(settings_.gradient_steps);
  }
  while (position_.step < steps_ && !stopping_) {
    const auto loss = step();
    if (!loss) return tl::unexpected(loss.error());
    loss_sum_ += *loss;
    const std::int64_t done = position_.step;
    if (done >= asks_at_) {
      if (Status status = agree_to_stop(); !status) return tl::unexpected(status);
    }
    const bool evaluates = done % eval_every_ == 0 || done == steps_ || stopping_;
    if (evaluates || done % settings_.log_every == 0) {
      if (Status status = log(evaluates); !status) return tl::unexpected(status);
    }
    if (settings_.save_every > 0 && done % settings_.save_every == 0) {
      if (Status status = save(); !status) return tl::unexpected(status);
    }
  }
  record_.interrupted = stopping_ && !record_.seconds_to_target;
  if (Status status = finish(); !status) return tl::unexpected(status);
  return std::move(record_);
}

}  // namespace

Result<Record> run_worker(const Shared& shared, std::shared_ptr<Model> model, World world) {
  Worker worker(shared, std::move(model));
  return worker.run(std::move(world));
}

}  // namespace gradpress::trainer
