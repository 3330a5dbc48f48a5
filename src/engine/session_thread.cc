// The thread of a session: it alone calls the engine.
#include <gradpress/codec.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/session.h"

namespace gradpress::engine {

void Session::loop() {
  for (Job job; next_job(job);) {
    Answer answer;
    try {
      if (job.work != nullptr) {
        answer.status = failure_ ? (*job.work)(*engine_) : failure_;
      } else {
        run(job);
      }
    } catch (const std::exception& error) {
      answer.status = Status::error(Code::kInternal, "engine: ", error.what());
      fail(answer.status);
    }
    if (job.answer == nullptr) continue;
    const MutexLock lock(mutex_);
    job.answer->status = answer.status;
    job.answer->given = true;
    events_changed_.notify_all();
  }
}

bool Session::next_job(Job& job) {
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (jobs_.empty() && !closing_ && !has_work_) jobs_changed_.wait(mutex_);
      // What encodes goes first: others wait for its messages.
      if (!jobs_.empty()) {
        job = jobs_.front();
        jobs_.pop_front();
        return true;
      }
      if (closing_) return false;
      has_work_ = false;
    }
    // A failure stays the engine's, and ends the next bucket as well.
    if (failure_) (void)engine_->progress();
  }
}

void Session::run(const Job& job) {
  if (!failure_) return;
  Status status = take(job);
  if (status && job.last) status = finish_step();
  if (!status) fail(status);
}

void Session::fail(const Status& status) {
  failure_ = status;
  const MutexLock lock(mutex_);
  failed_ = status;
  Numbered& slot = outcomes_.push_back();
  slot.number = events_++;
  slot.event.kind = SessionEvent::Kind::kFailed;
  slot.event.failure = status;
  events_changed_.notify_all();
}

std::span<float> Session::staging_of(std::uint32_t tensor) {
  const std::size_t elements = tensors_[tensor].shape.elements();
  if (staging_[tensor].size() != elements) staging_[tensor] = Buffer<float>(elements);
  return staging_[tensor].span();
}

Status Session::hand_over(std::uint32_t tensor, std::span<float> gradient) {
  delivered_[tensor] = gradient;
  return engine_->ready(tensor, gradient);
}

Status Session::take(const Job& job) {
  if (job.layout == nullptr) return {};
  for (const Slice& slice : *job.layout) {
    std::byte* memory = job.memory + slice.offset * size_of(job.type);
    std::span<float> gradient;
    if (job.type == ElementType::kFloat32) {
      gradient = {reinterpret_cast<float*>(memory), slice.elements};
    } else {
      gradient = staging_of(slice.tensor);
      to_floats(memory, job.type, gradient);
      staged_.push_back({.tensor = slice.tensor, .memory = memory, .type = job.type});
    }
    if (Status status = hand_over(slice.tensor, gradient); !status) return status;
  }
  return {};
}

Status Session::finish_step() {
  {
    const MutexLock lock(mutex_);
    step_marks_.swap(ended_marks_.front());
    ended_marks_.pop_front();
  }
  if (agreement_) {
    if (Status status = begin_agreement(); !status) return status;
  }
  auto step = engine_->wait();
  if (!step) return step.error();
  step->unused = static_cast<unsigned>(
      std::ranges::count_if(step_marks_, [](std::uint8_t marks) { return marks != kGiven; }));
  if (agreement_) {
    if (Status status = return_unused(*step); !status) return status;
  }
  for (const Staged& one : staged_) {
    from_floats(staging_[one.tensor].span(), one.type, one.memory);
  }
  staged_.clear();
  std::string running = engine_->running();
  const MutexLock lock(mutex_);
  last_step_ = *step;
  Numbered& slot = outcomes_.push_back();
  slot.number = events_++;
  slot.event.kind = SessionEvent::Kind::kStep;
  slot.event.step = *step;
  slot.event.running = std::move(running);
  events_changed_.notify_all();
  return {};
}

Status Session::begin_agreement() {
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    if ((step_marks_[i] & kGiven) != 0) continue;
    const std::span<float> zeros = staging_of(i);
    std::ranges::fill(zeros, 0.0F);
    if (Status status = hand_over(i, zeros); !status) return status;
    step_marks_[i] |= kUnused;
  }
  // In a buffer of its own, because the marks are still wanted.
  used_.resize(tensors_.size());
  std::ranges::transform(step_marks_, used_.begin(), [](std::uint8_t marks) {
    return static_cast<std::uint8_t>((marks & kUnused) == 0 ? 1 : 0);
  });
  return agreement_->start(used_);
}

Status Session::return_unused(EngineStep& step) {
  const auto used = agreement_->finish();
  if (!used) return used.error();
  step.unused = 0;
  if (options_.engine.codec == "auto") votes_.reset();
  for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
    if ((*used)[i] != 0) continue;
    ++step.unused;
    // A step that does not count delivered nothing.
    if (!step.finite) continue;
    const std::span<float> mean = delivered_[i];
    if (std::ranges::all_of(mean, [](float value) { return value == 0.0F; })) continue;
    if (!votes(i)) {
      // Each rank keeps the mean: in sum what all of them had sent.
      if (Status status = engine_->add_residual(i, mean); !status) return status;
      step.rests = false;
    }
    std::ranges::fill(mean, 0.0F);
  }
  return {};
}

bool Session::votes(std::uint32_t tensor) {
  if (!votes_) {
    votes_.emplace(tensors_.size());
    const Plan plan = engine_->plan();
    for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
      const auto codec = make_codec(plan.tensors[i].codec);
      (*votes_)[i] = codec && (*codec)->traits().combine == Combine::kVote;
    }
  }
  return (*votes_)[tensor];
}

}  // namespace gradpress::engine
