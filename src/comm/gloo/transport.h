// A Gloo group's messages: unbound buffers over a full mesh of TCP connections.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>
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
#include <vector>

#include "base/mutex.h"
#include "base/ring_queue.h"
#include "comm/meeting.h"
#include "comm/post.h"
#include "comm/transport.h"

namespace gradpress::comm {

/// Gloo's own thread moves the bytes. Messages carry the tag of their call (pair_tag), so that
/// those of ranks that disagree never meet; a wait has no timeout of Gloo's, which would tear down
/// every connection of the group, but is interrupted by the watch, which also ends the waits that
/// Gloo forgets: those for a message that was half received when its sender died.
class GlooTransport final : public Transport {
 public:
  struct Options {
    std::shared_ptr<Meeting> meeting = {};
    std::shared_ptr<gloo::transport::Device> device = {};
    std::string group = {};              ///< its name, the same on every rank
    std::vector<unsigned> members = {};  ///< world ranks
    unsigned rank = 0;
    std::chrono::milliseconds start_timeout{0};
  };

  /// Connects to all other members. Requires: all have come.
  /// Errors: kPeerLost, with Gloo's words.
  static Result<std::unique_ptr<Transport>> connect(Options options);
  ~GlooTransport() override;

  unsigned rank() const noexcept override { return options_.rank; }
  unsigned size() const noexcept override { return static_cast<unsigned>(options_.members.size()); }
  std::string_view backend() const noexcept override { return "gloo"; }
  Grain grain() const noexcept override;
  Status begin(const Collective& call) override;
  void end() override { post_->end(); }
  void post_send(unsigned to, std::span<const std::byte> bytes) override;
  void post_receive(unsigned from, std::span<std::byte> bytes) override;
  Status wait_send(unsigned to, std::chrono::milliseconds timeout) override;
  Status wait_receive(unsigned from, std::chrono::milliseconds timeout) override;
  void close() override;
  SentBytes sent_bytes() const override;
  Result<std::unique_ptr<Transport>> subgroup(std::span<const unsigned> ranks) override;

 private:
  using Buffer = gloo::transport::UnboundBuffer;
  using Queue = RingQueue<std::unique_ptr<Buffer>>;
  enum class Side : std::uint8_t { kSend, kReceive };
  struct Way {
    Queue sends;
    Queue receives;
    std::uint64_t tag = 0;  ///< of the present call
  };
  struct Fault {
    unsigned peer = 0;
    std::string why;
  };

  GlooTransport(Options options, std::shared_ptr<gloo::rendezvous::Context> context);

  /// Runs what may throw; the first fault is kept for the next wait.
  template <class Work>
  void guarded(unsigned peer, const Work& work);
  Status wait(unsigned peer, Side side, std::chrono::milliseconds timeout)
      GRADPRESS_EXCLUDES(mutex_);
  void interrupt() GRADPRESS_EXCLUDES(mutex_);

  const Options options_;
  const std::shared_ptr<gloo::rendezvous::Context> context_;  ///< none for a group of one
  std::shared_ptr<Post> post_;
  std::atomic<std::uint64_t> intra_bytes_{0};
  std::atomic<std::uint64_t> inter_bytes_{0};

  /// The lane's alone. Buffers of a failed call stay until the transport is destroyed.
  std::vector<Way> ways_;
  std::optional<Fault> fault_;

  Mutex mutex_;
  Buffer* waited_for_ GRADPRESS_GUARDED_BY(mutex_) = nullptr;
  Side side_ GRADPRESS_GUARDED_BY(mutex_) = Side::kSend;

  /// How often each list of ranks was asked for: whoever starts the group's calls alone.
  std::map<std::vector<unsigned>, unsigned> asked_;
};

}  // namespace gradpress::comm
