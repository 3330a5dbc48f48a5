#include <utility>

#include "engine/hand_over.h"
#include "engine/plain_engine.h"
#include "engine/planned.h"

namespace gradpress::engine {

Status PlainEngine::start_auto() {
  if (Status status = drop_candidates(); !status) return status;
  Result<Programs> raw = raw_programs();
  if (Status status = AutoWorld::check(options_); !status) raw = tl::unexpected(status);
  if (Status status = install(std::move(raw), std::string(kAuto)); !status) return status;
  if (fabric_->topology().workers() == 1) return {};
  if (!auto_world_) {
    auto_world_.emplace(
        *fabric_, exchange_, tensors_, options_, pilot_recorder_, clock_,
        AutoActions{.run = [this](const AutoCandidate& what) { return run_candidate(what); },
                    .drop = [this](const std::string& name) { return drop_candidate(name); },
                    .say = [this](const std::string& line) { say(line); }});
  }
  pilot_.emplace(options_.automatic, *auto_world_);
  pilot_->start();
  candidate_ = pilot_->runs();
  steered_ = clock_.now();
  return {};
}

Status PlainEngine::run_candidate(const AutoCandidate& candidate) {
  using Kind = AutoCandidate::Kind;
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
            : programs_of(candidate.plan, tensors_, fabric_->topology(), options_.seed);
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
  Status status = hand_over_residuals(*known->second.runtimes.front(), *now_.runtimes.front());
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

}  // namespace gradpress::engine
