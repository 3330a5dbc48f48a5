// Point-to-point messages between the members of one group: all that a backend brings. Lane,
// schedules and checks are TransportGroup's.
#pragma once

#include <gradpress/group.h>
#include <gradpress/status.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

namespace gradpress::comm {

/// A message goes in pieces of this size, so that summing one overlaps with the journey of the next
/// and a slow link shows progress.
inline constexpr std::size_t kSegmentBytes = std::size_t{128} << 10;
/// Segments whose receive is posted ahead: what a late wake-up may cost before the link runs dry.
inline constexpr std::size_t kWindow = 8;

/// How a transport likes its messages, the same on every rank.
struct Grain {
  std::size_t segment_bytes = kSegmentBytes;  ///< a multiple of 128
  std::size_t window = kWindow;
};

/// One member's end. Messages between two ranks arrive in the order of posting, and sizes on both
/// sides must agree; a message may be empty.
/// Threads: the group's lane begins, posts and waits; any may close and ask; who starts the group's
///          calls makes sub-groups.
class Transport {
 public:
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual unsigned rank() const noexcept = 0;
  virtual unsigned size() const noexcept = 0;
  virtual std::string_view backend() const noexcept = 0;
  virtual Grain grain() const noexcept { return {}; }

  /// Says which call the next messages belong to.
  /// Errors: kInvalidArgument when another rank is known to have begun a different call in its
  /// place, with both ranks' views. Ranks that find out later are told by a wait.
  virtual Status begin(const Collective& call) = 0;
  /// The call ended well.
  virtual void end() = 0;

  /// Begins to send or receive and returns at once. The bytes must live until the matching wait
  /// returned, or until the transport is destroyed when something failed.
  virtual void post_send(unsigned to, std::span<const std::byte> bytes) = 0;
  virtual void post_receive(unsigned from, std::span<std::byte> bytes) = 0;

  /// Waits for the oldest send to or receive from that peer that was not yet waited for.
  /// Errors: kPeerLost, naming the rank to blame, when it is gone or when the peer has not done its
  /// part for `timeout`; kInvalidArgument when ranks disagree. The first error stays: all later
  /// waits return it.
  virtual Status wait_send(unsigned to, std::chrono::milliseconds timeout) = 0;
  virtual Status wait_receive(unsigned from, std::chrono::milliseconds timeout) = 0;

  /// Ends this worker's waits, now and later, with kPeerLost, and its peers' waits for it. May be
  /// called twice.
  virtual void close() = 0;
  /// Payload bytes posted so far.
  virtual SentBytes sent_bytes() const = 0;

  /// This worker's end of a group of some of the ranks, as Group::subgroup.
  /// Requires: check_subgroup was ok.
  /// Errors:   kPeerLost when a member does not come.
  virtual Result<std::unique_ptr<Transport>> subgroup(std::span<const unsigned> ranks) = 0;

 protected:
  Transport() = default;
};

}  // namespace gradpress::comm
