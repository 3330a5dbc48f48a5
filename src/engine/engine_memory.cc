#include <utility>

#include "engine/checkpoint.h"
#include "engine/hand_over.h"
#include "engine/plain_engine.h"
#include "engine/planned.h"
#include "plan/plan_file.h"

namespace gradpress::engine {

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
    const Status moved = hand_over_residuals(*installed.runtimes.front(), *now_.runtimes.front());
    if (!moved) say("checkpoint: the residual of " + name + " is not in it: " + moved.message());
  }
  return save_checkpoint({.description = now_.description,
                          .plan = plan::to_json(plan()).dump(),
                          .rank = fabric_->rank(),
                          .step = step_,
                          .turn = static_cast<std::uint32_t>(now_.turn % 2)},
                         *now_.runtimes.front(), velocity_ ? &*velocity_ : nullptr);
}

Status PlainEngine::restore(std::span<const std::byte> checkpoint) {
  return guarded([&]() -> Status {
    if (Status status = between_steps("a checkpoint is restored"); !status) return status;
    auto saved = Checkpoint::open(checkpoint);
    if (!saved) return saved.error();
    if (saved->head().rank != fabric_->rank()) {
      return Status::error(Code::kInvalidArgument, "checkpoint: is rank ", saved->head().rank,
                           "'s, this is rank ", fabric_->rank());
    }
    if (Status status = drop_candidates(); !status) return status;
    std::string difference = first_difference(saved->head().description, now_.description);
    if (!difference.empty() && pilot_) {
      // What auto had found then is what goes on.
      if (Status status = run_saved_plan(saved->head().plan); !status) return status;
      difference = first_difference(saved->head().description, now_.description);
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
  for (const TensorSpec& tensor : tensors_) {
    target.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
  }
  const auto plan = parse_plan(text, "checkpoint", target);
  if (!plan) return plan.error();
  Status status =
      install(programs_of(*plan, tensors_, fabric_->topology(), options_.seed), std::string(kAuto));
  if (status) {
    pilot_->resume("the checkpoint's plan");
    candidate_ = pilot_->runs();
  }
  return status;
}

}  // namespace gradpress::engine
