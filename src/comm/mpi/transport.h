// A group's messages as MPI's non-blocking point-to-point calls.
#pragma once

#include <gradpress/group.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/ring_queue.h"
#include "comm/meeting.h"
#include "comm/mpi/module.h"
#include "comm/post.h"
#include "comm/transport.h"

namespace gradpress::comm {

/// Sleeps between looks, because MPI has no call that sleeps until a message is there: 10 us at
/// first, twice as long each time up to 200 us, 1 ms in a wait of more than 50 ms.
class MpiNap {
 public:
  std::chrono::nanoseconds next();

 private:
  std::chrono::nanoseconds length_ = std::chrono::microseconds(5);
  std::chrono::nanoseconds slept_{0};
};

/// Each call has a tag of its own, made of its number and of what this rank believes it to be:
/// ranks that believe different things exchange nothing, and the watch finds out.
class MpiTransport final : public Transport {
 public:
  struct Options {
    std::shared_ptr<Meeting> meeting = {};
    std::string group = {};              ///< its name, the same on every rank
    std::vector<unsigned> members = {};  ///< world ranks
    std::chrono::milliseconds start_timeout{0};
  };

  MpiTransport(std::unique_ptr<MpiPort> port, Options options);
  /// Gives up the receives that are under way. What a peer has begun to send cannot be given up,
  /// nor can sends: then the communicator is abandoned, and MPI may use those buffers until the
  /// process ends.
  ~MpiTransport() override;

  unsigned rank() const noexcept override { return port_->rank(); }
  unsigned size() const noexcept override { return port_->size(); }
  std::string_view backend() const noexcept override { return "mpi"; }
  Grain grain() const noexcept override;
  Status begin(const Collective& call) override;
  void end() override { post_->end(); }
  void post_send(unsigned to, std::span<const std::byte> bytes) override;
  void post_receive(unsigned from, std::span<std::byte> bytes) override;
  Status wait_send(unsigned to, std::chrono::milliseconds timeout) override;
  Status wait_receive(unsigned from, std::chrono::milliseconds timeout) override;
  void close() override { post_->close(); }
  SentBytes sent_bytes() const override;
  Result<std::unique_ptr<Transport>> subgroup(std::span<const unsigned> ranks) override;

 private:
  using Queue = RingQueue<MpiRequest>;

  std::uint32_t tag(unsigned peer);
  void put(Queue& queue, const Result<MpiRequest>& begun);
  Status wait(Queue& queue, unsigned peer, std::chrono::milliseconds timeout);
  Status wait_for_front(Queue& queue, unsigned peer, std::chrono::milliseconds timeout);
  /// Sleeps, or until the watch or close() ends this group's waits.
  void sleep_for(std::chrono::nanoseconds length) GRADPRESS_EXCLUDES(mutex_);
  /// Whether nothing of the queue is under way any more.
  bool emptied(Queue& queue);

  const std::unique_ptr<MpiPort> port_;
  const Options options_;
  std::shared_ptr<Post> post_;

  // The lane's alone.
  std::vector<Queue> sends_;
  std::vector<Queue> receives_;
  std::vector<std::uint32_t> tags_;  ///< of this call's messages with each peer; kNoTag: not yet
  Status failure_;                   ///< of a post; the waits return it
  bool lost_ = false;                ///< a wait has failed

  // Of the thread that makes sub-groups alone.
  std::map<std::vector<unsigned>, unsigned> asked_;  ///< by members: how often

  std::atomic<std::uint64_t> intra_bytes_{0};
  std::atomic<std::uint64_t> inter_bytes_{0};
  Mutex mutex_;
  CondVar interrupted_;
};

}  // namespace gradpress::comm
