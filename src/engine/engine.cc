#include <gradpress/engine.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "engine/program.h"
#include "engine/runtime.h"
#include "engine/simple_plan.h"
#include "sync/fabric.h"
#include "sync/message.h"

namespace gradpress {

namespace {

using engine::Program;
using engine::Runtime;

/// What the audit lets pass: the layouts are exact, so that more is a fault of ours or of a
/// backend.
constexpr double kAuditLimit = 0.01;

std::uint64_t total(const SentBytes& bytes) { return bytes.intra + bytes.inter; }

class PlainEngine final : public Engine {
 public:
  PlainEngine(sync::Fabric fabric, std::vector<engine::TensorSpec> tensors, EngineOptions options)
      : fabric_(std::make_unique<sync::Fabric>(std::move(fabric))),
        tensors_(std::move(tensors)),
        options_(std::move(options)) {}
  ~PlainEngine() override {
    if (!runtime_) return;
    const auto messages = runtime_->dissolve();
    // First the groups, then what they may still write to.
    fabric_.reset();
  }

  Status install(std::string_view codec);

  Status ready(std::size_t tensor, std::span<float> gradient) override;
  Result<EngineStep> wait() override;
  Status set_codec(std::string_view codec) override;
  void scale_residuals(float factor) override;
  void copy_residual(std::size_t tensor, std::span<float> out) const override;
  Status add_residual(std::size_t tensor, std::span<const float> residual) override;
  std::string summary() const override;

 private:
  Result<Program> make_program(std::string_view codec) const;
  Status hand_over(Runtime& from, Runtime& to) const;
  Status audit(const EngineStep& step);
  void say(const std::string& line) const {
    if (options_.log) options_.log(line);
  }

  std::unique_ptr<sync::Fabric> fabric_;
  const std::vector<engine::TensorSpec> tensors_;
  const EngineOptions options_;
  std::string codec_;
  std::unique_ptr<Runtime> runtime_;
  std::uint64_t step_ = 0;
  bool in_step_ = false;
  bool audit_warned_ = false;
};

std::string describe(const Program& program, Runtime& runtime) {
  std::string text;
  for (std::size_t i = 0; i < runtime.messages(); ++i) {
    text += runtime.message(i).description();
    text += '\n';
  }
  for (const auto& order : program.order) {
    text += "order:";
    for (const engine::Turn& turn : order) {
      text += ' ' + std::to_string(turn.message) + '.' + std::to_string(turn.stage);
    }
    text += '\n';
  }
  return text;
}

Result<Program> PlainEngine::make_program(std::string_view codec) const {
  auto messages = engine::simple_plan(tensors_, codec, fabric_->topology(),
                                      {.fusion = options_.fusion,
                                       .sum_payloads = options_.sum_payloads,
                                       .least_elements = options_.least_elements,
                                       .bucket_bytes = options_.bucket_bytes,
                                       .seed = options_.seed});
  if (!messages) return tl::unexpected(messages.error());
  for (sync::MessageSpec& message : *messages) message.feedback = options_.feedback;
  Program program{.messages = std::move(*messages)};
  program.order = engine::natural_order(program.messages, fabric_->topology());
  return program;
}

Status PlainEngine::install(std::string_view codec) {
  auto program = make_program(codec);
  if (!program) return program.error();
  auto runtime = Runtime::make(
      *program, *fabric_,
      {.pipelining = options_.pipelining, .allow_unused = options_.allow_unused}, steady_clock());
  if (!runtime) return runtime.error();
  const std::string description = describe(*program, **runtime);
  Status status = sync::check_agreement(fabric_->group(plan::Phase::kFlat), description);
  if (!status) return status;
  if (runtime_) {
    status = hand_over(*runtime_, **runtime);
    if (!status) return status;
  }
  runtime_ = std::move(*runtime);
  codec_ = codec;
  const bool encodes = std::ranges::any_of(
      program->messages, [](const sync::MessageSpec& message) { return !message.option.is_raw(); });
  if (fabric_->topology().workers() == 1) {
    say("one worker: nothing is exchanged, " + codec_ + " is not in effect on the wire");
  } else if (!encodes && codec_ != "none") {
    say(codec_ + " is not in effect: no tensor can take it or is large enough (at least " +
        std::to_string(options_.least_elements) + " elements)");
  }
  return {};
}

Status PlainEngine::hand_over(Runtime& from, Runtime& to) const {
  std::vector<float> residual;
  for (std::uint32_t tensor = 0; tensor < tensors_.size(); ++tensor) {
    residual.resize(tensors_[tensor].shape.elements());
    const auto [old_message, old_member] = from.place_of(tensor);
    const auto [new_message, new_member] = to.place_of(tensor);
    from.message(old_message).take_residual(old_member, residual);
    const bool nothing = std::ranges::all_of(residual, [](float value) { return value == 0.0F; });
    if (nothing) continue;
    if (Status status = to.message(new_message).give_residual(new_member, residual); !status) {
      return status;
    }
  }
  return {};
}

Status PlainEngine::ready(std::size_t tensor, std::span<float> gradient) {
  if (tensor >= tensors_.size()) {
    return Status::error(Code::kInvalidArgument, "engine: wanted a tensor below ", tensors_.size(),
                         ", got ", tensor);
  }
  if (!in_step_) {
    if (Status status = runtime_->begin(step_); !status) return status;
    in_step_ = true;
  }
  return runtime_->ready(static_cast<std::uint32_t>(tensor), gradient);
}

Result<EngineStep> PlainEngine::wait() {
  if (!in_step_) {
    if (Status status = runtime_->begin(step_); !status) return tl::unexpected(status);
    in_step_ = true;
  }
  const auto report = runtime_->wait();
  if (!report) return tl::unexpected(report.error());
  in_step_ = false;
  const EngineStep step{.step = step_,
                        .finite = report->outcome == sync::Outcome::kDone,
                        .sent = report->sent,
                        .promised = report->promised,
                        .exposed_us = report->exposed_us,
                        .unused = report->unused};
  ++step_;
  if (Status status = audit(step); !status) return tl::unexpected(status);
  return step;
}

Status PlainEngine::audit(const EngineStep& step) {
  const auto sent = static_cast<double>(total(step.sent));
  const auto promised = static_cast<double>(total(step.promised));
  if (std::abs(sent - promised) <= kAuditLimit * promised) return {};
  const Status status = Status::error(Code::kInternal, "audit of step ", step.step, ": ", codec_,
                                      " promised ", total(step.promised), " bytes, the ",
                                      fabric_->group(plan::Phase::kFlat).backend(),
                                      " backend counted ", total(step.sent));
  if (options_.strict) return status;
  if (!std::exchange(audit_warned_, true)) say(status.message());
  return {};
}

Status PlainEngine::set_codec(std::string_view codec) {
  if (in_step_) {
    return Status::error(Code::kInvalidArgument, "engine: the codec changes between steps; step ",
                         step_, " has not been waited for");
  }
  return install(codec);
}

void PlainEngine::scale_residuals(float factor) {
  for (std::size_t i = 0; i < runtime_->messages(); ++i) {
    runtime_->message(i).scale_residuals(factor);
  }
}

void PlainEngine::copy_residual(std::size_t tensor, std::span<float> out) const {
  const auto [message, member] = runtime_->place_of(static_cast<std::uint32_t>(tensor));
  runtime_->message(message).copy_residual(member, out);
}

Status PlainEngine::add_residual(std::size_t tensor, std::span<const float> residual) {
  const auto [message, member] = runtime_->place_of(static_cast<std::uint32_t>(tensor));
  return runtime_->message(message).give_residual(member, residual);
}

std::string PlainEngine::summary() const {
  const auto& messages = runtime_->program().messages;
  std::uint64_t elements = 0;
  std::uint64_t encoded = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    for (const sync::Member& member : messages[i].members) {
      elements += member.shape.elements();
      if (member.codec != "none") encoded += member.shape.elements();
    }
    bytes += total(runtime_->message(i).promised_bytes(step_));
  }
  const double share =
      elements == 0 ? 0.0 : 100.0 * static_cast<double>(encoded) / static_cast<double>(elements);
  std::string text = codec_ + " on " + std::to_string(fabric_->topology().workers()) +
                     " workers: " + std::to_string(tensors_.size()) + " tensors in " +
                     std::to_string(messages.size()) +
                     (messages.size() == 1 ? " message, " : " messages, ") +
                     std::to_string(std::lround(share)) + " % of the elements encoded, " +
                     std::to_string(bytes) + " bytes a step from this rank\n";
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const sync::MessageSpec& message = messages[i];
    text += "  " + message.members.front().name;
    if (message.members.size() > 1) {
      text += " and " + std::to_string(message.members.size() - 1) + " more";
    }
    text += ": " + plan::to_text(message.option) + '\n';
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::make(World world, const std::vector<EngineTensor>& tensors,
                                             const EngineOptions& options) {
  if (!world.group) return fail(Code::kInvalidArgument, "engine: wanted a group, got none");
  if (tensors.empty()) return fail(Code::kInvalidArgument, "engine: wanted tensors, got none");
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
  auto made = std::make_unique<PlainEngine>(std::move(*fabric), std::move(specs), options);
  if (Status status = made->install(options.codec); !status) return tl::unexpected(status);
  return made;
}

}  // namespace gradpress
