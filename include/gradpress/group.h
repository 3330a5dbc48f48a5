// Groups of workers and the collectives they run: what every backend does in full.
#pragma once

#include <gradpress/api.h>
#include <gradpress/data_type.h>
#include <gradpress/status.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace gradpress {

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kGather,
  kReduce,
  kBroadcast,
  kBarrier,
};

GRADPRESS_API std::string_view collective_name(CollectiveKind kind);

/// One collective call. All ranks give the same kind, type, root, counts and tensor.
///
/// The bytes of `in` and `out` stay the caller's and must live, untouched, until wait() returned.
/// After a failure they belong to the group until it is destroyed: a backend may still write to
/// them. Counts and the tensor's name are copied by start(). Counts are in elements of `type`.
struct Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType type = DataType::kBytes;
  std::span<const std::byte> in = {};
  std::span<std::byte> out = {};
  /// Elements per rank: what each contributes (all-gather, gather) or receives (reduce-scatter), or
  /// what this rank sends to each (all-to-all). Empty: the same for all.
  std::span<const std::size_t> counts = {};
  /// All-to-all: elements this rank receives from each; empty: the same for all.
  std::span<const std::size_t> receive_counts = {};
  unsigned root = 0;
  /// Names the call in errors.
  std::string_view tensor = {};
  /// A peer that has not delivered the awaited message for this long is lost; zero: the group's
  /// own. A slow link is no reason: time starts anew with every message.
  std::chrono::milliseconds timeout{0};
};

/// Payload bytes that left this worker through one group, by the link they took.
struct SentBytes {
  std::uint64_t intra = 0;  ///< to workers of the same machine
  std::uint64_t inter = 0;  ///< to workers of other machines
};

/// Numbers the calls of one group, from 1 on, in the order of start().
using Ticket = std::uint64_t;

/// One worker's end of a group. Destroying it abandons the calls that are not done; peers that
/// still need this worker get kPeerLost.
///
/// Order:   calls run one after the other, in the order of start(), which must be the same on every
///          rank. Different groups run at the same time.
/// Threads: one thread starts calls and makes sub-groups; any may wait or ask.
/// Errors:  the first failure ends the group: every later call returns it, and a new group must be
///          formed. kPeerLost names the rank to blame (its rank in the world, also in a sub-group),
///          the collective, its stage and the tensor; kInvalidArgument from wait() says how two
///          ranks' calls differ.
class GRADPRESS_API Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  virtual unsigned rank() const noexcept = 0;
  virtual unsigned size() const noexcept = 0;
  virtual std::string_view backend() const noexcept = 0;

  /// Begins a collective and returns at once.
  ///   all-reduce      in, out: n elements (may be the same memory); out is the sum
  ///   reduce-scatter  in: Σ counts, out: counts[rank]; the sum of every rank's piece
  ///   all-gather      in: counts[rank] (may lie at its place in out), out: Σ counts, in rank order
  ///   all-to-all      in: Σ counts, piece r goes to rank r; out: Σ receive_counts, in rank order
  ///   gather          in: counts[rank], out at the root: Σ counts
  ///   reduce          in: n, out at the root: n, the sum
  ///   broadcast       in at the root: n; out elsewhere: n
  ///   barrier         nothing
  /// In and out do not overlap but where it says so. Buffers that are summed are aligned to their
  /// elements. Every rank gets the same bits. Sums of kFloat16 and kBfloat16 are formed in float32
  /// in rank order and rounded once, to nearest even; kBytes cannot be summed.
  /// Cost:   no allocation after the first few calls.
  /// Errors: kInvalidArgument on sizes that do not fit (before anything is sent; the group lives
  ///         on), or the group's failure.
  virtual Result<Ticket> start(const Collective& call) = 0;

  /// Returns when the call and all before it are done, or when the group has failed before.
  /// Errors: the group's failure; kInvalidArgument on a ticket that start() never gave.
  virtual Status wait(Ticket ticket) = 0;
  /// Whether wait() would return at once.
  virtual bool done(Ticket ticket) const = 0;

  /// A group of some of the ranks, in that order; every member calls it with the same list, in the
  /// same order among its calls of subgroup(). It lives on when this group is destroyed.
  /// Errors: kInvalidArgument on a rank that is not in this group or named twice, or when this rank
  ///         is not among them.
  virtual Result<std::unique_ptr<Group>> subgroup(std::span<const unsigned> ranks) = 0;

  virtual SentBytes sent_bytes() const = 0;

  /// start and wait in one.
  Status run(const Collective& call);

 protected:
  Group() = default;
};

/// Whether the sizes of a call fit each other on this rank.
/// Errors: kInvalidArgument, saying which and what was wanted.
GRADPRESS_API Status check_collective(const Collective& call, unsigned rank, unsigned size);

}  // namespace gradpress
