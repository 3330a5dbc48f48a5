#include "gradient_thread.h"

#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <exception>
#include <utility>

namespace gradpress::plugin {

namespace {

/// Whether the engine can work on the tensor's own memory. Strides may be permuted: a codec sees
/// the elements in the order of memory, which is the same on every rank.
bool is_plain(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.scalar_type() == at::kFloat &&
         tensor.is_non_overlapping_and_dense();
}

}  // namespace

Result<std::unique_ptr<GradientThread>> GradientThread::make(const MakeEngine& make_engine) {
  std::unique_ptr<GradientThread> made(new GradientThread());
  auto engine = make_engine([thread = made.get()] {
    const MutexLock lock(thread->mutex_);
    thread->has_work_ = true;
    thread->changed_.notify_all();
  });
  if (!engine) return tl::unexpected(engine.error());
  made->engine_ = std::move(*engine);
  made->thread_ = std::thread([thread = made.get()] { thread->loop(); });
  return made;
}

GradientThread::~GradientThread() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  // The engine first: until it is destroyed, it may still write to the gradients of open jobs.
  engine_.reset();
  if (failure_.is_ok()) {
    failure_ = Status::error(Code::kPeerLost, "gradpress: closed in the middle of a step");
  }
  tell_all();
}

void GradientThread::tell_all() {
  for (Job& job : open_) {
    if (job.done) std::exchange(job.done, {})(failure_);
  }
  // After a failure the engine may write to the gradients until it is destroyed.
  if (failure_.is_ok()) open_.clear();
}

void GradientThread::push(std::vector<Slice> slices, bool last, Done done) {
  put({.slices = std::move(slices), .last = last, .done = std::move(done)});
}

Status GradientThread::between_steps(const Work& work) {
  Mutex mutex;
  CondVar told;
  std::optional<Status> result;
  put({.done =
           [&](const Status& status) {
             const MutexLock lock(mutex);
             result = status;
             told.notify_all();
           },
       .work = &work});
  const MutexLock lock(mutex);
  while (!result) told.wait(mutex);
  return *result;
}

std::optional<EngineStep> GradientThread::last_step() const {
  const MutexLock lock(mutex_);
  return last_step_;
}

void GradientThread::put(Job job) {
  const MutexLock lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void GradientThread::loop() {
  const c10::AutoGradMode no_grad(false);
  for (Job job; next(job); job = {}) {
    try {
      run(job);
    } catch (const std::exception& error) {
      // ATen throws, for want of memory as well.
      failure_ = Status::error(Code::kInternal, "gradpress: ", error.what());
      if (job.work != nullptr) job.done(failure_);
    }
    if (job.work != nullptr) continue;
    const bool ends = job.last || !failure_.is_ok();
    open_.push_back(std::move(job));
    if (ends) tell_all();
  }
}

bool GradientThread::next(Job& job) {
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_ && !has_work_) changed_.wait(mutex_);
      // What encodes goes first: others wait for its messages.
      if (!jobs_.empty()) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
        return true;
      }
      if (stopping_) return false;
      has_work_ = false;
    }
    // A failure stays the engine's, and ends the next bucket as well.
    if (failure_.is_ok()) (void)engine_->progress();
  }
}

void GradientThread::run(Job& job) {
  if (job.work != nullptr) {
    Status status = failure_;
    if (status.is_ok() && !open_.empty()) {
      status = Status::error(Code::kInvalidArgument,
                             "gradpress: this must be called between steps, backward is under way");
    }
    if (status.is_ok()) status = (*job.work)(*engine_);
    job.done(status);
    return;
  }
  const at::ThreadLocalStateGuard profiled(job.origin);
  const c10::AutoGradMode no_grad(false);
  RECORD_FUNCTION("gradpress::bucket", std::vector<c10::IValue>());
  for (Slice& slice : job.slices) {
    if (failure_.is_ok()) failure_ = take(slice);
  }
  if (job.last && failure_.is_ok()) failure_ = finish();
}

Status GradientThread::take(Slice& slice) {
  const std::size_t tensor = slice.tensor;
  if (is_plain(slice.gradient)) return engine_->ready(tensor, memory_of(slice));
  if (tensor >= staging_.size()) staging_.resize(tensor + 1);
  if (!staging_[tensor].defined()) {
    staging_[tensor] = at::empty(slice.gradient.sizes(), at::TensorOptions(at::kFloat));
  }
  staging_[tensor].copy_(slice.gradient);
  staged_.push_back(slice);
  return engine_->ready(tensor, memory_of({.tensor = tensor, .gradient = staging_[tensor]}));
}

Status GradientThread::finish() {
  RECORD_FUNCTION("gradpress::wait", std::vector<c10::IValue>());
  const auto step = engine_->wait();
  if (!step) return step.error();
  for (Slice& slice : staged_) slice.gradient.copy_(staging_[slice.tensor]);
  staged_.clear();
  const MutexLock lock(mutex_);
  last_step_ = *step;
  return {};
}

std::span<float> GradientThread::memory_of(const Slice& slice) {
  return {slice.gradient.data_ptr<float>(), static_cast<std::size_t>(slice.gradient.numel())};
}

}  // namespace gradpress::plugin
