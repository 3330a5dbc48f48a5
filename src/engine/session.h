// One model's engine on a thread of its own: buckets of gradients go in, events come out.
#pragma once

#include <gradpress/engine.h>
#include <gradpress/status.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/buffer.h"
#include "base/mutex.h"
#include "base/ring_queue.h"
#include "engine/element_type.h"
#include "engine/unused.h"

namespace gradpress::engine {

struct SessionOptions {
  /// `on_work`, `log` and `automatic.other_raw_us` are the session's own.
  EngineOptions engine = {};
  /// Ranks agree, at the end of every step, which tensors no rank used. What was delivered to those
  /// goes back into the residuals, and zeros stand in their memory. Not with momentum.
  bool return_unused = false;
};

struct SessionEvent {
  enum class Kind : std::uint8_t { kStep, kFailed, kLog, kClosed };
  Kind kind = Kind::kStep;
  EngineStep step = {};  ///< kStep. `unused`: tensors that no rank used with return_unused, else
                         ///< those without a gradient on this rank
  std::string running = {};  ///< kStep: Engine::running() after it
  Status failure = {};       ///< kFailed
  std::string line = {};     ///< kLog
};

/// Threads: one hands gradients over; one calls next(); any may make the other calls.
/// Memory:  what is float32 is worked on where it lies; other types are staged in memory that is
///          allocated the first time a tensor needs it.
/// Errors:  the first failure of a step ends the session: later calls return it. The gradients of
///          that step belong to the engine until close() returned.
class Session {
 public:
  /// Called on the session's thread, between two steps.
  using Work = std::function<Status(Engine&)>;

  /// Every rank calls it with the same tensors, in the order of backward, and the same options.
  /// Errors: kInvalidArgument when ranks differ (says in what); those of Engine::make.
  static Result<std::unique_ptr<Session>> make(World world, std::vector<EngineTensor> tensors,
                                               SessionOptions options);
  /// close(), and waits until all who wait in other calls have left.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const std::vector<EngineTensor>& tensors() const { return tensors_; }

  /// Describes a bucket: tensors[i] begins offsets[i] elements after its memory. Lives as long as
  /// the session. Errors: kInvalidArgument on an unknown tensor, one named twice, none.
  Result<std::uint32_t> add_layout(std::span<const std::uint32_t> tensors,
                                   std::span<const std::uint64_t> offsets)
      GRADPRESS_EXCLUDES(mutex_);
  /// Hands a bucket over and returns at once; `last` ends the step. The memory must live,
  /// untouched, until the step's event, when it holds the mean over all workers.
  /// Cost:   a lock and a wake-up; no allocation after the first steps.
  /// Errors: kInvalidArgument, and nothing was handed over: an unknown layout, memory that is null
  ///         or not aligned, a tensor that came before in this step, with `last` a tensor that
  ///         neither came nor is unused, unless unused tensors are allowed; the session's failure.
  Status push(std::uint32_t layout, void* memory, ElementType type, bool last)
      GRADPRESS_EXCLUDES(mutex_);
  /// The same for one tensor, never the last of its step.
  Status ready(std::uint32_t tensor, void* memory, std::uint64_t elements, ElementType type)
      GRADPRESS_EXCLUDES(mutex_);
  /// These tensors have no gradient on this rank in the step under way: zeros are handed over for
  /// them, or nothing.
  Status mark_unused(std::span<const std::uint32_t> tensors) GRADPRESS_EXCLUDES(mutex_);
  /// Ends the step that is under way, or an empty one, without a further bucket. Returns at once.
  /// Errors: as push() with `last`.
  Status end_step() GRADPRESS_EXCLUDES(mutex_);
  /// Ends the step that is under way, or an empty one when all events of earlier steps were taken,
  /// and waits for the last step that was ended. Takes its event.
  Result<EngineStep> wait() GRADPRESS_EXCLUDES(mutex_);
  /// The next event in order, if one comes in time; no limit: waits for ever.
  std::optional<SessionEvent> next(std::optional<std::chrono::milliseconds> limit)
      GRADPRESS_EXCLUDES(mutex_);
  /// Steps that were ended before are finished; one that is under way is given up, which the other
  /// ranks' sessions report as a lost peer. Then ends the engine: memory that was handed over is
  /// the caller's again. After the events before it, next() gives kClosed, again and again.
  void close() GRADPRESS_EXCLUDES(mutex_);

  /// Runs the work after all steps that were ended before, and waits for it.
  /// Errors: the work's; kInvalidArgument inside a step; the session's failure.
  Status between_steps(const Work& work) GRADPRESS_EXCLUDES(mutex_);
  Status set_codec(std::string_view codec);
  /// A step's time by a way of the caller's own, for AutoOptions::other_raw_us; 0: not known.
  void set_baseline_us(double us) { baseline_us_ = us; }
  /// Errors of these beside between_steps(): kInvalidArgument on a factor that is not finite, an
  /// unknown tensor, a wrong size.
  Status scale_residuals(double factor);
  Status copy_residual(std::uint32_t tensor, std::span<float> out);
  Status add_residual(std::uint32_t tensor, std::span<const float> residual);
  Result<std::vector<std::byte>> checkpoint();
  Status restore(std::span<const std::byte> checkpoint);

 private:
  struct Slice {
    std::uint32_t tensor = 0;
    std::uint64_t offset = 0;
    std::uint64_t elements = 0;
  };
  using Layout = std::vector<Slice>;
  /// What between_steps() waits for; guarded by mutex_.
  struct Answer {
    bool given = false;
    Status status = {};
  };
  struct Job {
    const Layout* layout = nullptr;  ///< null: no bucket
    std::byte* memory = nullptr;
    ElementType type = ElementType::kFloat32;
    bool last = false;
    const Work* work = nullptr;  ///< instead of all that
    Answer* answer = nullptr;
  };
  struct Staged {
    std::uint32_t tensor = 0;
    std::byte* memory = nullptr;
    ElementType type = ElementType::kFloat32;
  };
  /// By tensor, of one step. Bits.
  using Marks = std::vector<std::uint8_t>;
  static constexpr std::uint8_t kGiven = 1;
  static constexpr std::uint8_t kUnused = 2;

  Session(std::vector<EngineTensor> tensors, SessionOptions options);

  Status check_usable() const GRADPRESS_REQUIRES(mutex_);
  Status check_tensor(std::uint32_t tensor) const;
  Status check_residual(std::uint32_t tensor, std::size_t elements) const;
  Status check_bucket(const Layout& layout, bool last) const GRADPRESS_REQUIRES(mutex_);
  /// Whether every tensor has a mark or is in the step's last bucket; names the first that is not.
  Status check_complete(const Layout& last) const GRADPRESS_REQUIRES(mutex_);
  void put_bucket(const Layout* layout, std::byte* memory, ElementType type, bool last)
      GRADPRESS_REQUIRES(mutex_);
  void mark(std::uint32_t tensor, std::uint8_t bit) GRADPRESS_REQUIRES(mutex_);
  void end_open_step() GRADPRESS_REQUIRES(mutex_);
  Status end_without_bucket() GRADPRESS_REQUIRES(mutex_);
  void add_line(std::string_view line) GRADPRESS_EXCLUDES(mutex_);
  /// Whoever waits in a call is counted, so that the destructor can wait for them.
  void leave() GRADPRESS_REQUIRES(mutex_);

  // The thread's.
  void loop() GRADPRESS_EXCLUDES(mutex_);
  /// Blocks until there is a job; does the engine's work meanwhile. False: there will be none.
  bool next_job(Job& job) GRADPRESS_EXCLUDES(mutex_);
  void run(const Job& job) GRADPRESS_EXCLUDES(mutex_);
  Status take(const Job& job);
  Status hand_over(std::uint32_t tensor, std::span<float> gradient);
  std::span<float> staging_of(std::uint32_t tensor);
  Status finish_step() GRADPRESS_EXCLUDES(mutex_);
  /// Starts the agreement on what no rank used. Zeros of the session's own stand for what did not
  /// come.
  Status begin_agreement();
  /// Returns what was delivered to tensors that no rank used. Sets step.unused and step.rests.
  Status return_unused(EngineStep& step);
  /// Whether the codec of a tensor votes: then what it delivers is owed to nobody.
  bool votes(std::uint32_t tensor);
  void fail(const Status& status) GRADPRESS_EXCLUDES(mutex_);

  const std::vector<EngineTensor> tensors_;
  const SessionOptions options_;
  std::atomic<double> baseline_us_ = 0.0;

  // The thread's alone, and close()'s after it.
  std::vector<Buffer<float>> staging_;       ///< by tensor; empty where none was needed yet
  std::vector<Staged> staged_;               ///< of this step: to be converted back
  std::vector<std::span<float>> delivered_;  ///< by tensor: where this step's mean will be
  Marks step_marks_;                         ///< of the step that ends
  std::vector<std::uint8_t> used_;           ///< by tensor: whether this rank did, in that step
  std::optional<std::vector<bool>> votes_;   ///< by tensor; none: not known any more
  Status failure_;
  std::unique_ptr<UnusedAgreement> agreement_;  ///< with return_unused
  std::unique_ptr<Engine> engine_;              ///< after all that it may write to

  mutable Mutex mutex_;
  CondVar jobs_changed_;                                     ///< for the thread
  CondVar events_changed_;                                   ///< for all others
  std::deque<Layout> layouts_ GRADPRESS_GUARDED_BY(mutex_);  ///< first one for each tensor alone
  RingQueue<Job> jobs_ GRADPRESS_GUARDED_BY(mutex_);
  RingQueue<Marks> ended_marks_ GRADPRESS_GUARDED_BY(mutex_);  ///< of steps not yet finished
  Marks marks_ GRADPRESS_GUARDED_BY(mutex_);                   ///< of the step under way
  std::size_t missing_ GRADPRESS_GUARDED_BY(mutex_) = 0;       ///< tensors without a mark
  bool in_step_ GRADPRESS_GUARDED_BY(mutex_) = false;
  std::uint64_t ended_ GRADPRESS_GUARDED_BY(mutex_) = 0;  ///< steps whose last bucket came
  std::uint64_t taken_ GRADPRESS_GUARDED_BY(mutex_) = 0;  ///< steps whose event was taken
  struct Numbered {
    std::uint64_t number = 0;  ///< in the order of all events
    SessionEvent event = {};
  };
  std::uint64_t events_ GRADPRESS_GUARDED_BY(mutex_) = 0;
  RingQueue<Numbered> outcomes_ GRADPRESS_GUARDED_BY(mutex_);  ///< kStep and kFailed
  RingQueue<Numbered> lines_ GRADPRESS_GUARDED_BY(mutex_);     ///< kLog
  EngineStep last_step_ GRADPRESS_GUARDED_BY(mutex_) = {};
  Status failed_ GRADPRESS_GUARDED_BY(mutex_);
  bool has_work_ GRADPRESS_GUARDED_BY(mutex_) = false;  ///< the engine's, while buckets are awaited
  bool closing_ GRADPRESS_GUARDED_BY(mutex_) = false;
  bool closed_ GRADPRESS_GUARDED_BY(mutex_) = false;
  unsigned inside_ GRADPRESS_GUARDED_BY(mutex_) = 0;  ///< who wait in a call

  std::thread thread_;  ///< last, so that all it uses is there
};

}  // namespace gradpress::engine
