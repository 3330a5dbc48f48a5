// Who is to blame when a collective does not get on, where ranks are processes.
//
// Every process has one Watch, and every end of a group in it a Post. A lane notes in its post
// which call it is in and whom it waits for; the watch's thread reads that, tells the store when a
// wait lasts, reads what others told, and ends the wait with a verdict (blame.h). The first verdict
// on a group is everybody's. Keys, below the job's name:
//   beat/RANK        a count that moves a few times a second, and each group's calls
//   gone/RANK        the process ended without leaving: its connection's will
//   left/GROUP/RANK  that end was destroyed after so many calls
//   wait/GROUP/RANK  what a lane that has waited for a while is doing
//   verdict/GROUP    why the group failed
#pragma once

#include <gradpress/status.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "comm/blame.h"
#include "comm/post.h"
#include "comm/store/client.h"

namespace gradpress::comm {

/// One per process and world. Threads: any.
class Watch {
 public:
  struct Options {
    std::string job = {};  ///< keeps the keys of different worlds apart
    unsigned rank = 0;     ///< in the world
    /// The rank whose process hosts the store; none when a launcher does.
    std::optional<unsigned> host = {};
  };

  /// `store` is the watch's own connection. Errors: the store's.
  static Result<std::shared_ptr<Watch>> start(std::unique_ptr<store::StoreClient> store,
                                              Options options);
  /// Tells of the ends that left, and takes leave. Cost: some seconds when the store is silent.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Watches one end, until its post is closed.
  std::shared_ptr<Post> open(Post::Options options) GRADPRESS_EXCLUDES(mutex_);

  static constexpr std::chrono::milliseconds kTick{50};
  static constexpr std::chrono::milliseconds kBeat{250};
  /// A wait that lasts longer is told to the others.
  static constexpr std::chrono::milliseconds kPatience{100};

 private:
  using Posts = std::vector<std::shared_ptr<Post>>;
  /// What is known of a rank from its beats.
  struct Pulse {
    std::uint64_t count = 0;
    Time still{0};  ///< how long it has not moved while this thread was awake
    std::map<std::string, Calls, std::less<>> calls = {};
  };

  Watch(std::unique_ptr<store::StoreClient> store, Options options);

  void work() GRADPRESS_EXCLUDES(mutex_);
  /// The posts that are open; those that were closed since, and are no longer watched.
  Posts open_posts(Posts& closed) GRADPRESS_EXCLUDES(mutex_);
  void look(const Posts& posts, const Posts& closed);
  /// Everything that needs the store. Errors: the store's.
  Status confer(const Posts& posts, const Posts& closed);
  Status beat(const Posts& posts);
  Status read_pulses(Time awake);
  Status read_verdicts(const Posts& posts);
  Status tell_of_wait(const Post& post, const std::optional<Post::Wait>& wait);
  Status confer_on(Post& post, const std::optional<Post::Wait>& wait);
  Result<Case> read_case(const Post& post, const std::optional<Post::Wait>& wait);
  /// Without a store there is only what this process sees by itself.
  void judge_alone(Post& post) const;
  void adopt(Post& post, const Verdict& verdict) const;

  std::string key(std::string_view kind, std::string_view group = {}) const;

  const Options options_;
  const std::unique_ptr<store::StoreClient> store_;
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  std::atomic<bool> stopping_ = false;

  Mutex mutex_;
  Posts posts_ GRADPRESS_GUARDED_BY(mutex_);

  /// The thread's alone.
  std::uint64_t beats_ = 0;
  Time last_beat_{0};
  Time last_look_{0};
  Status store_failure_;
  std::map<unsigned, Pulse> pulses_;                ///< by world rank
  std::map<std::string, Verdict> verdicts_;         ///< by group
  std::map<std::string, std::string> told_;         ///< by group: the wait that stands in the store
  std::map<std::string, std::uint64_t> host_left_;  ///< by group: calls the store's host ended

  std::thread thread_;  ///< last, so that all it uses is there
};

}  // namespace gradpress::comm
