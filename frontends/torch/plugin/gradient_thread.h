// The thread that owns a model's engine: buckets go in, and their callers are told when all is the
// mean.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>
#include <gradpress/engine.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace gradpress::plugin {

/// One parameter's gradient inside a bucket.
struct Slice {
  std::size_t tensor = 0;    ///< as the engine numbers them
  at::Tensor gradient = {};  ///< any type and device; what is not float32 in host memory is staged
};

/// Threads: one pushes; any may ask. Nothing of this holds Python's lock.
class GradientThread {
 public:
  /// Called on the thread, once, when the bucket's step has ended; must not throw or push.
  using Done = std::function<void(const Status&)>;
  /// Called on the thread between two steps.
  using Work = std::function<Status(Engine&)>;

  /// Makes the engine with an on_work that wakes the thread.
  using MakeEngine = std::function<Result<std::unique_ptr<Engine>>(std::function<void()> on_work)>;
  /// Errors: the engine's.
  static Result<std::unique_ptr<GradientThread>> make(const MakeEngine& make_engine);
  /// Ends what is under way with an error; peers that still need this worker get kPeerLost.
  ~GradientThread();
  GradientThread(const GradientThread&) = delete;
  GradientThread& operator=(const GradientThread&) = delete;

  /// Hands over some gradients and returns at once; `last` ends the step. The gradients must live,
  /// untouched, until `done`, when they hold the mean over all workers.
  void push(std::vector<Slice> slices, bool last, Done done) GRADPRESS_EXCLUDES(mutex_);
  /// Runs the work after all that was pushed before it, and waits for it.
  /// Errors: the work's; kInvalidArgument inside a step; the engine's failure.
  Status between_steps(const Work& work) GRADPRESS_EXCLUDES(mutex_);
  /// The last step that ended well.
  std::optional<EngineStep> last_step() const GRADPRESS_EXCLUDES(mutex_);

 private:
  GradientThread() = default;

  struct Job {
    std::vector<Slice> slices = {};
    bool last = false;
    Done done = {};
    const Work* work = nullptr;  ///< instead of slices
    /// Where it came from, so that the profiler sees this thread's part of it.
    at::ThreadLocalState origin = {};
  };

  void put(Job job) GRADPRESS_EXCLUDES(mutex_);
  void loop() GRADPRESS_EXCLUDES(mutex_);
  /// Blocks until there is a job; does the engine's work meanwhile. False: there will be none.
  bool next(Job& job) GRADPRESS_EXCLUDES(mutex_);
  void run(Job& job) GRADPRESS_EXCLUDES(mutex_);
  Status take(Slice& slice);
  /// Tells those who wait for this step how it ended.
  void tell_all();
  Status finish() GRADPRESS_EXCLUDES(mutex_);
  std::span<float> memory_of(const Slice& slice);

  // The thread's alone.
  std::unique_ptr<Engine> engine_;
  std::vector<Slice> staged_;        ///< of this step: to be copied back
  std::vector<at::Tensor> staging_;  ///< by tensor; undefined where none was needed yet
  std::vector<Job> open_;            ///< of this step: to be told; kept after a failure
  Status failure_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Job> jobs_ GRADPRESS_GUARDED_BY(mutex_);
  bool stopping_ GRADPRESS_GUARDED_BY(mutex_) = false;
  bool has_work_ GRADPRESS_GUARDED_BY(mutex_) = false;  ///< the engine's, while buckets are awaited
  std::optional<EngineStep> last_step_ GRADPRESS_GUARDED_BY(mutex_);

  std::thread thread_;  ///< last, so that all it uses is there
};

}  // namespace gradpress::plugin
