// One model's synchronisation as Python sees it: parameters in, futures out.
#pragma once

#include <ATen/core/Tensor.h>
#include <gradpress/engine.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "c10d_world.h"
#include "gradient_thread.h"

namespace gradpress::plugin {

/// A parameter that takes part, by the name that its residual is kept under.
struct Parameter {
  std::string name = {};
  at::Tensor tensor = {};
};

/// More extents than a shape has leave a flat tensor, which low-rank codecs send dense.
Shape shape_of(const at::Tensor& tensor);
/// The error for a bucket's parameter that was not attached.
Status unknown_parameter(std::size_t parameter, std::size_t bucket);

/// The engine of one model over a process group, on a thread of its own.
///
/// Threads: one pushes buckets; none may hold Python's lock while it calls what waits.
class Session {
 public:
  /// Every rank calls it, with parameters in the same order, best that of backward.
  /// Errors: those of connect_c10d and Engine::make.
  static Result<std::unique_ptr<Session>> make(const C10dOptions& group,
                                               const std::vector<Parameter>& parameters,
                                               EngineOptions options);

  /// Hands over a bucket of DDP; parameters are found by identity, so that buckets may change.
  /// Errors: kInvalidArgument on a parameter that is not the session's.
  Status push(const c10d::GradBucket& bucket, GradientThread::Done done);
  /// Hands over single gradients; `last` ends the step.
  void push(std::vector<Slice> slices, bool last, GradientThread::Done done) {
    thread_->push(std::move(slices), last, std::move(done));
  }

  Status set_codec(std::string_view codec);
  /// What a step takes by DDP's own all-reduce, for AutoOptions::other_raw_us; 0: not known.
  void set_other_raw_us(double us) { other_raw_us_->store(us); }
  Status scale_residuals(float factor);
  /// This rank's share of what error feedback keeps of a parameter, float32 in host memory.
  Result<at::Tensor> residual(std::size_t tensor);
  Status add_residual(std::size_t tensor, const at::Tensor& residual);
  Result<std::string> summary();
  /// What runs now: a codec's text, "plan", or "auto (…)".
  Result<std::string> running();
  /// As Engine::checkpoint and Engine::restore.
  Result<std::vector<std::byte>> checkpoint();
  Status restore(std::span<const std::byte> checkpoint);
  std::optional<EngineStep> last_step() const { return thread_->last_step(); }
  /// What the engine said since the last call.
  std::vector<std::string> take_log() { return log_->take(); }
  std::size_t tensors() const { return sizes_.size(); }

 private:
  class Log {
   public:
    void add(std::string_view line) GRADPRESS_EXCLUDES(mutex_);
    std::vector<std::string> take() GRADPRESS_EXCLUDES(mutex_);

   private:
    Mutex mutex_;
    std::vector<std::string> lines_ GRADPRESS_GUARDED_BY(mutex_);
  };

  Session() = default;
  template <class T, class Ask>
  Result<T> ask(const Ask& question);
  Status check_tensor(std::size_t tensor) const;

  std::shared_ptr<Log> log_ = std::make_shared<Log>();
  std::shared_ptr<std::atomic<double>> other_raw_us_ = std::make_shared<std::atomic<double>>(0.0);
  std::vector<std::int64_t> sizes_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> tensor_of_;
  std::unique_ptr<GradientThread> thread_;
};

}  // namespace gradpress::plugin
