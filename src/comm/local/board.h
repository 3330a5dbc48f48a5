// Where the members of one local group meet: their messages, what each one waits for, and the
// group's first failure.
#pragma once

#include <gradpress/group.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/ring_queue.h"
#include "comm/agreement.h"
#include "comm/local/link.h"

namespace gradpress::comm {

/// Shared by all members of a group. Ranks are the group's own unless called world ranks.
///
/// A send and a receive meet here: whichever is posted second copies the bytes, at once and outside
/// the lock, straight from the sender's buffer into the receiver's. So a posted message depends on
/// no one's waiting, and no circle of waits can lock up. When it counts as sent and as delivered is
/// the network's matter.
///
/// Threads: any number at once; one per member posts and waits.
class Board {
 public:
  /// `members` are world ranks. Requires: the clock outlives the board.
  Board(std::shared_ptr<Network> network, Clock& clock, std::vector<unsigned> members);

  unsigned size() const { return static_cast<unsigned>(world_ranks_.size()); }
  const Topology& topology() const { return network_->topology(); }
  unsigned world_rank(unsigned rank) const { return world_ranks_[rank]; }
  Clock& clock() const { return clock_; }

  /// Rank's next call begins. Errors: as Transport::begin.
  Status begin(unsigned rank, const Collective& call) GRADPRESS_EXCLUDES(mutex_);

  /// `posted` is the time the message may start to move from.
  void post_send(unsigned from, unsigned to, std::span<const std::byte> bytes, Time posted)
      GRADPRESS_EXCLUDES(mutex_);
  void post_receive(unsigned from, unsigned to, std::span<std::byte> bytes, Time posted)
      GRADPRESS_EXCLUDES(mutex_);
  /// Sleeps until the sender's oldest message has left, or the receiver's oldest has arrived;
  /// returns that time. Errors: as Transport's waits.
  Result<Time> wait_send(unsigned from, unsigned to, std::chrono::milliseconds timeout)
      GRADPRESS_EXCLUDES(mutex_);
  Result<Time> wait_receive(unsigned from, unsigned to, std::chrono::milliseconds timeout)
      GRADPRESS_EXCLUDES(mutex_);

  /// The member is gone: nothing of its memory is touched after this returned.
  void leave(unsigned rank) GRADPRESS_EXCLUDES(mutex_);

  /// The board of a sub-group: made by the first member that asks, found by the others.
  std::shared_ptr<Board> subgroup(unsigned rank, std::span<const unsigned> ranks)
      GRADPRESS_EXCLUDES(mutex_);

 private:
  enum class State : std::uint8_t { kPosted, kCopying, kCopied };
  struct Message {
    std::span<const std::byte> from;
    std::span<std::byte> to;
    Time earliest{0};
    Transfer transfer;
    State state = State::kPosted;
  };
  /// Messages from one member to another, oldest first; numbered from 0 on.
  struct Channel {
    RingQueue<Message> messages;
    std::uint64_t first = 0;  ///< the number of messages.front()
    std::uint64_t sends = 0;
    std::uint64_t receives = 0;
    std::uint64_t sends_waited = 0;
    std::uint64_t receives_waited = 0;
  };
  struct Member {
    CondVar changed;
    bool gone = false;
    unsigned copies = 0;                ///< under way, from or into its memory
    std::optional<unsigned> waits_for;  ///< a peer that has not done its part
    std::uint64_t calls = 0;            ///< begun
  };
  /// One call, until every member has begun it.
  struct Call {
    std::vector<CallView> views;  ///< by rank
    std::vector<bool> begun;
    unsigned count = 0;
  };
  /// A sub-group's board, until every member has asked for it.
  struct Invitation {
    std::shared_ptr<Board> board;
    std::vector<bool> taken;
    unsigned count = 0;
  };
  enum class Side : std::uint8_t { kSend, kReceive };

  Channel& channel(unsigned from, unsigned to) GRADPRESS_REQUIRES(mutex_) {
    return channels_[std::size_t{from} * size() + to];
  }
  /// The channel's message with that number, made if it is the next.
  static Message& message(Channel& channel, std::uint64_t number);
  /// Marks it as waited for on one side; lets go of those that both sides have waited for.
  static void settle(Channel& channel, Side side);
  /// Copies the message if both sides are there, letting go of the lock meanwhile.
  void match(unsigned from, unsigned to, std::uint64_t number) GRADPRESS_REQUIRES(mutex_);
  Result<Time> wait(unsigned from, unsigned to, Side side, std::chrono::milliseconds timeout)
      GRADPRESS_EXCLUDES(mutex_);
  /// Whether the failure concerns the call that rank is in. Ranks that are still in an earlier one
  /// need nothing of those who failed, and end it well.
  bool failed(unsigned rank) const GRADPRESS_REQUIRES(mutex_);
  bool closed(unsigned rank) const GRADPRESS_REQUIRES(mutex_);
  /// The member at the end of the chain of waits that begins with `peer`.
  unsigned blamed(unsigned peer) const GRADPRESS_REQUIRES(mutex_);
  Status silence(unsigned rank, unsigned peer, std::chrono::milliseconds timeout) const
      GRADPRESS_REQUIRES(mutex_);
  /// Ends that call and all later ones, on every rank. Returns the failure that counts: the first
  /// of the earliest call.
  Status fail_from(std::uint64_t call, Status status) GRADPRESS_REQUIRES(mutex_);

  const std::shared_ptr<Network> network_;
  Clock& clock_;
  const std::vector<unsigned> world_ranks_;

  Mutex mutex_;
  std::vector<Member> members_ GRADPRESS_GUARDED_BY(mutex_);
  std::vector<Channel> channels_ GRADPRESS_GUARDED_BY(mutex_);
  RingQueue<Call> calls_ GRADPRESS_GUARDED_BY(mutex_);
  std::uint64_t first_call_ GRADPRESS_GUARDED_BY(mutex_) = 0;
  std::map<std::vector<unsigned>, std::vector<Invitation>> invitations_
      GRADPRESS_GUARDED_BY(mutex_);
  Status failure_ GRADPRESS_GUARDED_BY(mutex_);
  std::uint64_t failed_call_ GRADPRESS_GUARDED_BY(mutex_) = 0;  ///< counted like Member::calls
};

}  // namespace gradpress::comm
