// Where the lane of one end of a group notes what it does, for the watch to read.
#pragma once

#include <gradpress/group.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "comm/agreement.h"
#include "comm/blame.h"

namespace gradpress::comm {

/// Wakes the watch's thread.
class Bell {
 public:
  void ring() GRADPRESS_EXCLUDES(mutex_);
  /// Until it was rung since the last wait, or `time`.
  void wait_until(Time time) GRADPRESS_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  CondVar changed_;
  bool rung_ GRADPRESS_GUARDED_BY(mutex_) = false;
};

/// Threads: those of the lane's part the lane's alone, the others any.
class Post {
 public:
  struct Options {
    std::string group = {};              ///< its name, the same on every rank; no slash
    std::vector<unsigned> members = {};  ///< world ranks
    unsigned rank = 0;                   ///< in the group
    /// Ends the lane's wait, if it is in one. Called on the watch's thread after failed() became
    /// true, and never after close() returned; must not call the post.
    std::function<void()> interrupt = {};
  };
  struct Wait {
    unsigned peer = 0;  ///< in the group
    Time since{0};
    std::chrono::milliseconds timeout{0};
  };

  Post(std::shared_ptr<Bell> bell, Options options);
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  const std::string& group() const { return options_.group; }
  unsigned rank() const { return options_.rank; }
  unsigned size() const { return static_cast<unsigned>(options_.members.size()); }
  const std::vector<unsigned>& members() const { return options_.members; }

  // The lane's part.
  /// The next call begins. Errors: the failure, if there is one already.
  Status begin(const Collective& call) GRADPRESS_EXCLUDES(mutex_);
  /// It ended well.
  void end() { ++ended_; }
  /// What marks this call's messages between this rank and `peer`.
  std::uint64_t tag(unsigned peer) const GRADPRESS_EXCLUDES(mutex_);
  /// Cost: a few atomic stores and a look at the clock.
  void wait_begins(unsigned peer, std::chrono::milliseconds timeout);
  void wait_ends();
  /// The connection to a peer broke: waits until it is known why, some seconds at most, and returns
  /// the failure.
  Status broken(unsigned peer, std::string_view why) GRADPRESS_EXCLUDES(mutex_);

  // Anybody's part.
  bool failed() const { return failed_; }
  Status failure() const GRADPRESS_EXCLUDES(mutex_);
  /// This end leaves: it has failed here, and the others are told.
  void close() GRADPRESS_EXCLUDES(mutex_);

  // The watch's part.
  Calls calls() const { return {.begun = begun_, .ended = ended_}; }
  bool closed() const { return closed_; }
  std::optional<Wait> wait() const;
  std::optional<BrokenLink> broken_link() const GRADPRESS_EXCLUDES(mutex_);
  CallView view() const GRADPRESS_EXCLUDES(mutex_);
  /// The first failure stays.
  void fail(const Status& status) GRADPRESS_EXCLUDES(mutex_);

 private:
  const std::shared_ptr<Bell> bell_;
  const Options options_;

  std::atomic<std::uint64_t> begun_ = 0;
  std::atomic<std::uint64_t> ended_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> closed_ = false;
  /// Odd while a wait is under way; the three below then belong to it.
  std::atomic<std::uint64_t> turn_ = 0;
  std::atomic<unsigned> wait_peer_ = 0;
  std::atomic<std::int64_t> wait_since_ = 0;
  std::atomic<std::int64_t> wait_timeout_ = 0;

  mutable Mutex mutex_;
  CondVar changed_;
  CallView view_ GRADPRESS_GUARDED_BY(mutex_);
  Status failure_ GRADPRESS_GUARDED_BY(mutex_);
  /// `since` is the time it broke.
  std::optional<BrokenLink> broken_ GRADPRESS_GUARDED_BY(mutex_);
};

}  // namespace gradpress::comm
