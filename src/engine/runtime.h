// Runs a program step by step: stages of many messages beside each other, each on its lane.
//
// Lanes are those of the timeline:
//   device  codec work that competes with backward: done by the thread that calls ready() and
//           wait(), between two gradients
//   host    codec work on a helper thread
//   intra, inter  one thread each, which starts the collectives of its link in the program's order
#pragma once

#include <gradpress/group.h>
#include <gradpress/status.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/ring_queue.h"
#include "engine/program.h"
#include "engine/store_plan.h"
#include "plan/span.h"
#include "sync/fabric.h"
#include "sync/message.h"

namespace gradpress::engine {

struct RuntimeOptions {
  /// Off: nothing is sent before wait(), and then message after message. To measure what
  /// pipelining gives.
  bool pipelining = true;
  /// A tensor that is not ready at wait() counts as zero; off: that is an error.
  bool allow_unused = false;
  /// Keeps the spans of each step.
  bool record_spans = false;
  /// As EngineOptions::on_work.
  std::function<void()> on_work = {};
  /// Counts what each message sends, one collective of a link at a time: two in a row, which a lane
  /// starts otherwise, could not be told apart.
  bool count_messages = false;
};

/// Collectives of one group that a lane starts ahead: the next one is queued while the last still
/// runs, so that the link does not stand still while the lane wakes up.
inline constexpr std::size_t kInFlight = 2;

/// What runtimes that take turns have in common: one runs one step, another the next.
struct RuntimeShared {
  sync::Memories memories = {};
  std::shared_ptr<sync::BufferPool> pool = std::make_shared<sync::BufferPool>();
  std::vector<std::shared_ptr<sync::Store>> stores = {};

  /// When all runtimes are made: the memory for what their messages said they want.
  void reserve();
  std::uint64_t bytes() const;
};

/// A message that did not send what its layout promises.
struct MessageBytes {
  std::uint32_t message = 0;
  SentBytes sent = {};
  SentBytes promised = {};
};

struct StepReport {
  sync::Outcome outcome = sync::Outcome::kDone;
  SentBytes sent = {};      ///< counted by the backend
  SentBytes promised = {};  ///< what the messages' layouts promise
  double exposed_us = 0.0;  ///< from the call of wait() to its end
  unsigned unused = 0;      ///< tensors that counted as zero
  /// Where messages are counted: the one furthest from its promise, if any is.
  std::optional<MessageBytes> furthest = {};
  std::span<const plan::Span> spans = {};  ///< times from begin(); valid until the next begin()
};

/// Threads: one calls begin(), ready() and wait(); it is the device's lane.
/// Memory:  the messages', of which two at a time per lane have buffers (store_plan.h says when it
///          must be more): a message whose predecessor's are not free yet waits with its first
///          stage, its gradients untouched. Per step nothing is allocated after the first.
/// Errors:  the first failure ends the runtime: later calls return it.
class Runtime {
 public:
  /// Requires: fabric and clock outlive the runtime. Who gives `shared` calls its reserve() before
  ///           the first step.
  /// Errors:   kInvalidArgument: a message that cannot be made, an order that cannot be followed, a
  ///           tensor in two messages.
  static Result<std::unique_ptr<Runtime>> make(Program program, sync::Fabric& fabric,
                                               const RuntimeOptions& options, Clock& clock,
                                               RuntimeShared* shared = nullptr);
  /// Waits for the collectives under way.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Ends the lanes and hands the messages out, for whoever destroys the groups before them: after
  /// a failure a backend may still write to their buffers. Nothing else may be called afterwards.
  std::vector<std::unique_ptr<sync::Message>> dissolve();

  std::size_t tensors() const { return where_.size(); }
  sync::Message& message(std::size_t index) { return *journeys_[index]->message; }
  std::size_t messages() const { return journeys_.size(); }
  const Program& program() const { return program_; }
  /// Which message a tensor travels in, and its place there.
  std::pair<std::uint32_t, std::uint32_t> place_of(std::uint32_t tensor) const;
  /// What stands for the tensor in the step that ended last: the caller's memory, or a stand-in of
  /// one that was unused.
  std::span<float> gradient(std::uint32_t tensor) const { return where_[tensor].gradient; }

  /// Between steps: see RuntimeOptions::count_messages.
  void count_messages(bool count) { counts_ = count; }

  Status begin(std::uint64_t step);
  /// The tensor's gradient is complete. Does its codec work, and what else of the device's is due
  /// unless on_work leaves that to progress().
  /// Requires: the gradient lives, untouched, until wait() returned, which leaves the mean in it.
  /// Errors:   kInvalidArgument on an unknown tensor, a wrong size, or the second time in a step.
  Status ready(std::uint32_t tensor, std::span<float> gradient);
  /// Does the device's codec work that is due.
  Status progress() GRADPRESS_EXCLUDES(mutex_);
  /// A step that any message ended as kNonFinite is taken back in all of them.
  Result<StepReport> wait();
  /// Takes back the step that was waited for last: all that messages keep is as it was before it,
  /// bit for bit. Requires: nothing else was called since.
  void rewind();

 private:
  struct Where {
    std::uint32_t message = 0;
    std::uint32_t member = 0;
    bool is_ready = false;        ///< the caller's alone
    std::span<float> gradient;    ///< of this step
    std::vector<float> stand_in;  ///< the gradient of an unused tensor
  };
  struct Task {
    std::uint32_t message = 0;
    std::uint32_t stage = 0;
    std::uint32_t member = kAllMembers;
    std::span<float> gradient = {};
    Time runnable_at{0};
  };
  struct Journey {
    std::unique_ptr<sync::Message> message;
    std::atomic<std::uint32_t> missing{0};  ///< members whose first stage is not done
    std::uint32_t stage = 0;                ///< with `runnable`: guarded by mutex_
    bool runnable = false;                  ///< its collective waits for its turn
    Time runnable_at{0};
    SentBytes sent = {};               ///< whoever runs its collective
    std::uint32_t after = kNoMessage;  ///< who has its store next
    bool waits_for_store = false;      ///< another has it first in every step
    /// Its store is free for it. Set under mutex_; acquire and release order what both did in it.
    std::atomic<bool> has_store{true};
    std::vector<Task> parked;   ///< guarded by mutex_: members that came before the store
    bool parked_whole = false;  ///< guarded by mutex_: all came, for a collective
  };
  static constexpr std::uint32_t kAllMembers = 0xFFFFFFFF;
  static constexpr std::size_t kLinks = 2;
  static constexpr plan::Lane lane_of(sync::Link link) {
    return link == sync::Link::kIntra ? plan::Lane::kIntra : plan::Lane::kInter;
  }

  Runtime(Program program, sync::Fabric& fabric, const RuntimeOptions& options, Clock& clock);
  Status prepare(RuntimeShared& shared);
  /// Runs a lane to its end; what it throws is a failure of this runtime alone.
  template <class Lane>
  void guard(const Lane& lane) GRADPRESS_EXCLUDES(mutex_);

  bool takes_turn(const sync::Stage& stage) const;
  /// Stage `next` of a message has become the one to do, on whatever thread this runs.
  void advance(std::uint32_t message, std::uint32_t next) GRADPRESS_EXCLUDES(mutex_);
  /// The same for one message. Returns the one whose collective came first and can begin now.
  std::uint32_t go_on(std::uint32_t message, std::uint32_t next) GRADPRESS_EXCLUDES(mutex_);
  /// Ends the message and gives its store on. Returns as go_on().
  std::uint32_t finish(std::uint32_t message) GRADPRESS_EXCLUDES(mutex_);
  /// Whether the task, or all of the message, has to wait for the store; then finish() starts it.
  bool parks(Journey& journey, const Task* task) GRADPRESS_EXCLUDES(mutex_);
  /// Whether it is for the device: then tell_of_work(), without the lock.
  bool enqueue(const Task& task) GRADPRESS_REQUIRES(mutex_);
  void tell_of_work(bool for_device) const GRADPRESS_EXCLUDES(mutex_);
  /// One member more has done its part of the first stage: whether it was the last.
  bool last_member(std::uint32_t message);
  void run_task(const Task& task, plan::Lane lane) GRADPRESS_EXCLUDES(mutex_);
  void run_due_device_tasks() GRADPRESS_EXCLUDES(mutex_);
  Status flush_unready();
  void run_serially();
  SentBytes sent_by(const Turn& turn) const;
  /// What the group of a turn sent since `before`, which is this message's alone.
  void count(const Turn& turn, const SentBytes& before);
  std::optional<MessageBytes> furthest() const;

  void stop_lanes() GRADPRESS_EXCLUDES(mutex_);
  // In lanes.cc.
  void host_lane() GRADPRESS_EXCLUDES(mutex_);
  void link_lane(sync::Link link) GRADPRESS_EXCLUDES(mutex_);
  /// Blocks until the turn's collective is runnable; false when the step cannot go on.
  bool await_turn(const Turn& turn, CondVar& changed) GRADPRESS_EXCLUDES(mutex_);
  bool turn_is_runnable(const Turn& turn) GRADPRESS_EXCLUDES(mutex_);
  Status begin_turn(const Turn& turn, Time& runnable_at) GRADPRESS_EXCLUDES(mutex_);

  void fail_with(const Status& status) GRADPRESS_EXCLUDES(mutex_);
  Status failure() const GRADPRESS_EXCLUDES(mutex_);
  void record(plan::Lane lane, const Task& task, Time start, Time end) GRADPRESS_EXCLUDES(mutex_);

  const Program program_;
  sync::Fabric& fabric_;
  const RuntimeOptions options_;
  Clock& clock_;
  std::vector<std::unique_ptr<Journey>> journeys_;
  std::vector<Where> where_;  ///< by tensor

  // The caller's alone.
  bool counts_ = false;
  std::uint64_t step_ = 0;
  bool in_step_ = false;
  Time step_began_{0};
  SentBytes sent_before_ = {};

  // What a look without the lock tells.
  std::atomic<std::uint32_t> device_tasks_{0};
  std::atomic<bool> failed_{false};

  mutable Mutex mutex_;
  CondVar caller_changed_;
  CondVar host_changed_;
  std::array<CondVar, kLinks> link_changed_;
  RingQueue<Task> device_queue_ GRADPRESS_GUARDED_BY(mutex_);
  RingQueue<Task> host_queue_ GRADPRESS_GUARDED_BY(mutex_);
  std::uint64_t steps_begun_ GRADPRESS_GUARDED_BY(mutex_) = 0;
  bool counting_ GRADPRESS_GUARDED_BY(mutex_) = false;  ///< in this step
  std::uint32_t unfinished_ GRADPRESS_GUARDED_BY(mutex_) = 0;
  bool non_finite_ GRADPRESS_GUARDED_BY(mutex_) = false;
  bool stopping_ GRADPRESS_GUARDED_BY(mutex_) = false;
  Status failure_ GRADPRESS_GUARDED_BY(mutex_);
  std::vector<plan::Span> spans_ GRADPRESS_GUARDED_BY(mutex_);
  std::vector<plan::Span> last_spans_;

  std::vector<std::thread> threads_;  ///< last, so that all they use is there
};

}  // namespace gradpress::engine
