// What the schedules of one call share: its messages, and the words for its errors.
#pragma once

#include <gradpress/group.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "comm/schedule.h"
#include "comm/transport.h"

namespace gradpress::comm {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

constexpr std::size_t segment_count(std::size_t bytes, std::size_t segment) {
  return (bytes + segment - 1) / segment;
}

/// Segment `index` of a buffer; the last one is shorter.
template <class Span>
Span segment_of(Span bytes, std::size_t segment, std::size_t index) {
  const std::size_t from = index * segment;
  return bytes.subspan(from, std::min(segment, bytes.size() - from));
}

/// One call on one rank. Threads: one.
class Exchange {
 public:
  Exchange(Transport& transport, const Collective& call, std::chrono::milliseconds timeout,
           Scratch& scratch);

  const Collective& call() const { return call_; }
  Scratch& scratch() { return scratch_; }
  unsigned rank() const { return rank_; }
  unsigned size() const { return size_; }
  std::size_t segment() const { return grain_.segment_bytes; }
  std::size_t window() const { return grain_.window; }
  unsigned after(unsigned steps) const { return (rank_ + steps) % size_; }
  unsigned before(unsigned steps) const { return (rank_ + size_ - steps % size_) % size_; }

  /// Says in errors where the call is: "reduce-scatter step 2 of 3"; without steps the name alone.
  void stage(std::string_view name, std::size_t step = 0, std::size_t steps = 0);

  /// Tells the transport of the call.
  Status begin();

  /// Sends one message; returns its number, from 1 on. An empty one is sent, too.
  std::uint64_t send(unsigned to, ConstBytes bytes);
  /// The same in segments; of nothing, nothing is sent.
  void send_segments(unsigned to, ConstBytes bytes, std::size_t segment);
  void send_segments(unsigned to, ConstBytes bytes) { send_segments(to, bytes, segment()); }
  /// Waits until the sends up to number `last` have let go of their bytes.
  Status finish_sends(std::uint64_t last);
  Status finish_sends() { return finish_sends(sent_); }

  void post(unsigned from, Bytes bytes) { transport_.post_receive(from, bytes); }
  void post_segments(unsigned from, Bytes bytes, std::size_t segment);
  void post_segments(unsigned from, Bytes bytes) { post_segments(from, bytes, segment()); }
  /// Waits for the oldest posted receive.
  Status receive(unsigned from);
  Status receive_segments(unsigned from, std::size_t bytes, std::size_t segment);
  Status receive_segments(unsigned from, std::size_t bytes) {
    return receive_segments(from, bytes, segment());
  }

 private:
  Status explained(const Status& status) const;

  Transport& transport_;
  const Collective& call_;
  const std::chrono::milliseconds timeout_;
  Scratch& scratch_;
  const unsigned rank_;
  const unsigned size_;
  const Grain grain_;
  std::string_view stage_ = {};
  std::size_t step_ = 0;
  std::size_t steps_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t finished_ = 0;
};

/// Where each rank's piece begins, and at the end where the last one ends: in bytes, for given
/// counts or, without, `bytes` cut by shard_range.
void piece_offsets(std::span<const std::size_t> counts, std::size_t unit, std::size_t bytes,
                   unsigned size, std::vector<std::size_t>& offsets);

template <class Span>
Span piece_of(Span bytes, std::span<const std::size_t> offsets, unsigned rank) {
  return bytes.subspan(offsets[rank], offsets[rank + 1] - offsets[rank]);
}

/// Copies unless both are the same memory.
void copy_bytes(ConstBytes from, Bytes to);
/// to += from, as float32. Requires: aligned to floats.
void add_floats(ConstBytes from, Bytes to);

Status ring_all_reduce(Exchange& exchange);
Status ring_reduce_scatter(Exchange& exchange);
Status ring_all_gather(Exchange& exchange);
Status pairwise_all_to_all(Exchange& exchange);
Status direct_gather(Exchange& exchange);
Status tree_reduce(Exchange& exchange);
Status tree_broadcast(Exchange& exchange);
Status dissemination_barrier(Exchange& exchange);
/// For two-byte floats.
Status sharded_all_reduce(Exchange& exchange);
Status sharded_reduce_scatter(Exchange& exchange);
Status sharded_reduce(Exchange& exchange);

/// The ring's second half: every rank's piece, already sent to the next rank by its owner in
/// `segment` pieces, goes round until all have it. Requires: scratch().offsets describe `out`.
Status hand_round(Exchange& exchange, std::size_t segment);

}  // namespace gradpress::comm
