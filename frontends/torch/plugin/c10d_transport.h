// A group's messages as the point-to-point calls of a c10d process group.
#pragma once

#include <gradpress/group.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "base/mutex.h"
#include "base/ring_queue.h"
#include "comm/meeting.h"
#include "comm/post.h"
#include "comm/transport.h"

namespace gradpress::plugin {

/// Messages are byte tensors around the caller's memory. Sub-groups use the same process group:
/// their messages differ by tag. Each call has a tag of its own, made of its number and of what
/// this rank believes it to be: ranks that believe different things exchange nothing, and the watch
/// finds out. A wait has no timeout of c10d's, which would tear down every connection of the
/// process group; the watch interrupts it.
class C10dTransport final : public comm::Transport {
 public:
  struct Options {
    c10::intrusive_ptr<c10d::ProcessGroup> process_group = {};
    std::shared_ptr<comm::Meeting> meeting = {};
    std::string group = {};              ///< its name, the same on every rank
    std::vector<unsigned> members = {};  ///< ranks of the process group
    unsigned rank = 0;                   ///< in the group
    std::uint32_t number = 0;            ///< of the group among all that share the process group
    std::chrono::milliseconds start_timeout{0};
  };

  explicit C10dTransport(Options options);
  ~C10dTransport() override;

  unsigned rank() const noexcept override { return options_.rank; }
  unsigned size() const noexcept override { return static_cast<unsigned>(options_.members.size()); }
  std::string_view backend() const noexcept override { return "c10d"; }
  comm::Grain grain() const noexcept override;
  Status begin(const Collective& call) override;
  void end() override { post_->end(); }
  void post_send(unsigned to, std::span<const std::byte> bytes) override;
  void post_receive(unsigned from, std::span<std::byte> bytes) override;
  Status wait_send(unsigned to, std::chrono::milliseconds timeout) override;
  Status wait_receive(unsigned from, std::chrono::milliseconds timeout) override;
  void close() override { post_->close(); }
  SentBytes sent_bytes() const override;
  /// Errors: also kInvalidArgument beyond kMostGroups groups.
  Result<std::unique_ptr<comm::Transport>> subgroup(std::span<const unsigned> ranks) override;

  /// Groups that one process group can carry, over its whole life: tags have no room for more.
  static constexpr std::uint32_t kMostGroups = 1024;

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Queue = RingQueue<Work>;
  struct Way {
    Queue sends;
    Queue receives;
    int tag = 0;  ///< of the present call
  };
  struct Fault {
    unsigned peer = 0;
    std::string why;
  };

  /// Runs what may throw; the first fault is kept for the next wait.
  template <class Call>
  void guarded(unsigned peer, const Call& call);
  Status wait(Queue& queue, unsigned peer, std::chrono::milliseconds timeout)
      GRADPRESS_EXCLUDES(mutex_);
  void interrupt() GRADPRESS_EXCLUDES(mutex_);

  const Options options_;
  std::shared_ptr<comm::Post> post_;
  std::atomic<std::uint64_t> intra_bytes_{0};
  std::atomic<std::uint64_t> inter_bytes_{0};

  /// The lane's alone. What a failed call has under way stays until the transport is destroyed.
  std::vector<Way> ways_;
  std::optional<Fault> fault_;

  Mutex mutex_;
  Work waited_for_ GRADPRESS_GUARDED_BY(mutex_);

  /// How often each list of ranks was asked for: whoever starts the group's calls alone.
  std::map<std::vector<unsigned>, unsigned> asked_;
};

}  // namespace gradpress::plugin
