// Ring schedules. Words: a *chunk* is one rank's piece of the buffer; it goes round in *segments*;
// at each *step* every rank receives a chunk from the rank before it and hands it to the next.
#include <algorithm>
#include <limits>

#include "comm/exchange.h"

namespace gradpress::comm {

namespace {

/// A *block* is the segments of a chunk that do all their steps before the next ones begin: where
/// partial sums have no home but scratch, this bounds it. It is as long as the window.
/// A segment's slot is busy from its posting until the next rank has taken it: at most two blocks
/// of messages in the order of receives. With that many slots the rank that is furthest behind
/// never waits for a slot (what held it, every rank ahead has already taken), so the ring cannot
/// lock up; the third block keeps the others from waiting, too.
constexpr std::size_t kSlotBlocks = 3;

struct Course {
  unsigned first_chunk = 0;  ///< the chunk a rank sends of its own
  unsigned steps = 0;
  std::size_t segment = 0;
  std::size_t block = 0;  ///< order (block, step, segment); 0: (step, segment)
  bool own_sent = false;  ///< the first chunk is already on its way
};

/// A segment that arrives: in which step, and where its bytes belong in the whole buffer.
struct Place {
  unsigned step = 0;
  std::size_t block = 0;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

/// Walks the arriving segments in order; empty chunks have none.
class Walk {
 public:
  Walk(const Course& course, std::span<const std::size_t> offsets, unsigned size)
      : course_(course), offsets_(offsets), size_(size) {
    std::size_t most = 0;
    for (unsigned chunk = 0; chunk < size; ++chunk) {
      most = std::max(most, segments(chunk));
    }
    width_ = course.block > 0 ? course.block : most;
    blocks_ = most == 0 ? 0 : segment_count(most, width_);
    settle();
  }

  bool at_end() const { return block_ == blocks_; }
  std::size_t blocks() const { return blocks_; }
  Place place() const { return place_in(chunk(), step_, block_, index_); }
  void advance() {
    ++index_;
    settle();
  }

  /// The segments of block `block` of a rank's own first chunk.
  template <class Visit>
  void visit_own(std::size_t block, Visit visit) const {
    const std::size_t end = std::min(width_, segments_in(course_.first_chunk, block));
    for (std::size_t i = 0; i < end; ++i) visit(place_in(course_.first_chunk, 0, block, i));
  }

 private:
  std::size_t segments(unsigned chunk) const {
    return segment_count(offsets_[chunk + 1] - offsets_[chunk], course_.segment);
  }
  /// Segments of a chunk from the block's first on.
  std::size_t segments_in(unsigned chunk, std::size_t block) const {
    const std::size_t all = segments(chunk);
    return all - std::min(all, block * width_);
  }
  unsigned chunk() const { return (course_.first_chunk + 2 * size_ - 1 - step_ % size_) % size_; }
  Place place_in(unsigned chunk, unsigned step, std::size_t block, std::size_t index) const {
    const std::size_t offset = offsets_[chunk] + (block * width_ + index) * course_.segment;
    return {.step = step,
            .block = block,
            .offset = offset,
            .bytes = std::min(course_.segment, offsets_[chunk + 1] - offset)};
  }
  void settle() {
    while (block_ < blocks_ && index_ >= std::min(width_, segments_in(chunk(), block_))) {
      index_ = 0;
      if (++step_ < course_.steps) continue;
      step_ = 0;
      ++block_;
    }
  }

  Course course_;
  std::span<const std::size_t> offsets_;
  unsigned size_;
  std::size_t width_ = 0;
  std::size_t blocks_ = 0;
  std::size_t block_ = 0;
  unsigned step_ = 0;
  std::size_t index_ = 0;
};

/// Runs a course. `Use` says where segments land and what becomes of them:
///   Bytes landing(place, index)         where the index-th arriving segment is received
///   Status reusable(index)              waits until that memory is free
///   ConstBytes absorb(place, landed)    takes it in; returns what the next rank gets
///   void forwarded(index, number)       it was sent on as that send
template <class Use>
Status run_course(Exchange& exchange, const Course& course, Use& use) {
  const unsigned next = exchange.after(1);
  const unsigned previous = exchange.before(1);
  Walk arriving(course, exchange.scratch().offsets, exchange.size());
  Walk posting = arriving;
  std::size_t own_blocks = course.own_sent ? arriving.blocks() : 0;
  const auto send_own = [&](std::size_t end) {
    for (; own_blocks < std::min(end, arriving.blocks()); ++own_blocks) {
      arriving.visit_own(own_blocks,
                         [&](const Place& place) { exchange.send(next, use.own(place)); });
    }
  };
  // Between two ranks one connection carries both directions, and a transport that asks for each
  // message has its requests wait behind what is being sent: the directions would take turns. So
  // all is asked for before anything is sent; nothing is handed on, no memory is needed twice.
  const std::size_t ahead =
      next == previous ? std::numeric_limits<std::size_t>::max() / 2 : exchange.window();
  std::size_t posted = 0;
  const auto post_until = [&](std::size_t end) -> Status {
    for (; !posting.at_end() && posted < end; posting.advance(), ++posted) {
      const Status status = use.reusable(posted);
      if (!status.is_ok()) return status;
      exchange.post(previous, use.landing(posting.place(), posted));
    }
    return {};
  };
  if (next == previous) {
    const Status status = post_until(ahead);
    if (!status.is_ok()) return status;
  }
  for (std::size_t index = 0; !arriving.at_end(); arriving.advance(), ++index) {
    const Place place = arriving.place();
    // A block's own segments follow the last that is handed on of the block before.
    const bool last_step = place.step + 1 == course.steps;
    send_own(place.block + (last_step ? 2 : 1));
    exchange.stage(use.stage(place.step), place.step % (exchange.size() - 1) + 1,
                   exchange.size() - 1);
    Status status = post_until(index + ahead);
    if (!status.is_ok()) return status;
    status = exchange.receive(previous);
    if (!status.is_ok()) return status;
    const ConstBytes onward = use.absorb(place, use.landing(place, index));
    if (!last_step) use.forwarded(index, exchange.send(next, onward));
  }
  send_own(arriving.blocks());
  return exchange.finish_sends();
}

/// First half: chunks are summed on their way round. Second half: the sums go round.
class AllReduceUse {
 public:
  explicit AllReduceUse(Exchange& exchange)
      : call_(exchange.call()),
        adding_steps_(exchange.size() - 1),
        in_place_(call_.in.data() == call_.out.data()),
        segment_(exchange.segment()),
        window_(most_posted(exchange)),
        slots_(exchange.scratch().slots) {
    // Chunk c comes back as a sum only after this rank's part of it has been taken, so it may land
    // where that part was; only sums in place need memory of their own for what arrives.
    if (in_place_ && slots_.size() < window_ * segment_) slots_.resize(window_ * segment_);
  }

  std::string_view stage(unsigned step) const {
    return step < adding_steps_ ? "reduce-scatter" : "all-gather";
  }
  ConstBytes own(const Place& place) const { return call_.in.subspan(place.offset, place.bytes); }
  Bytes landing(const Place& place, std::size_t index) const {
    if (place.step >= adding_steps_ || !in_place_) return out(place);
    return Bytes(slots_).subspan(index % window_ * segment_, place.bytes);
  }
  Status reusable(std::size_t) const { return {}; }
  ConstBytes absorb(const Place& place, Bytes landed) const {
    if (place.step < adding_steps_) add_floats(in_place_ ? landed : own(place), out(place));
    return out(place);
  }
  void forwarded(std::size_t, std::uint64_t) const {}

 private:
  /// Between two ranks all segments of the larger chunk.
  static std::size_t most_posted(Exchange& exchange) {
    if (exchange.size() > 2) return exchange.window();
    const std::vector<std::size_t>& offsets = exchange.scratch().offsets;
    return segment_count(std::max(offsets[1], offsets[2] - offsets[1]), exchange.segment());
  }
  Bytes out(const Place& place) const { return call_.out.subspan(place.offset, place.bytes); }

  const Collective& call_;
  const unsigned adding_steps_;
  const bool in_place_;
  const std::size_t segment_;
  const std::size_t window_;
  std::vector<std::byte>& slots_;
};

/// Chunks are summed on their way round, in slots, and end in `out` at the rank they are for.
class ReduceScatterUse {
 public:
  explicit ReduceScatterUse(Exchange& exchange)
      : exchange_(exchange),
        call_(exchange.call()),
        last_step_(exchange.size() - 2),
        own_offset_(exchange.scratch().offsets[exchange.rank()]),
        segment_(exchange.segment()),
        slot_count_(kSlotBlocks * exchange.window()),
        slots_(exchange.scratch().slots),
        marks_(exchange.scratch().marks) {
    if (slots_.size() < slot_count_ * segment_) slots_.resize(slot_count_ * segment_);
    marks_.assign(slot_count_, 0);
  }

  std::string_view stage(unsigned) const { return "ring"; }
  ConstBytes own(const Place& place) const { return call_.in.subspan(place.offset, place.bytes); }
  Bytes landing(const Place& place, std::size_t index) const {
    if (place.step == last_step_) {
      return call_.out.subspan(place.offset - own_offset_, place.bytes);
    }
    return Bytes(slots_).subspan(index % slot_count_ * segment_, place.bytes);
  }
  Status reusable(std::size_t index) const {
    return exchange_.finish_sends(marks_[index % slot_count_]);
  }
  ConstBytes absorb(const Place& place, Bytes landed) const {
    add_floats(own(place), landed);
    return landed;
  }
  void forwarded(std::size_t index, std::uint64_t number) const {
    marks_[index % slot_count_] = number;
  }

 private:
  Exchange& exchange_;
  const Collective& call_;
  const unsigned last_step_;
  const std::size_t own_offset_;
  const std::size_t segment_;
  const std::size_t slot_count_;
  std::vector<std::byte>& slots_;
  std::vector<std::uint64_t>& marks_;
};

/// Chunks go round and stay in `out` at every rank.
class AllGatherUse {
 public:
  explicit AllGatherUse(Exchange& exchange)
      : call_(exchange.call()), own_offset_(exchange.scratch().offsets[exchange.rank()]) {}

  std::string_view stage(unsigned) const { return "all-gather"; }
  ConstBytes own(const Place& place) const {
    return call_.in.subspan(place.offset - own_offset_, place.bytes);
  }
  Bytes landing(const Place& place, std::size_t) const {
    return call_.out.subspan(place.offset, place.bytes);
  }
  Status reusable(std::size_t) const { return {}; }
  ConstBytes absorb(const Place&, Bytes landed) const { return landed; }
  void forwarded(std::size_t, std::uint64_t) const {}

 private:
  const Collective& call_;
  const std::size_t own_offset_;
};

}  // namespace

Status ring_all_reduce(Exchange& exchange) {
  const Collective& call = exchange.call();
  piece_offsets({}, size_of(call.type), call.in.size(), exchange.size(),
                exchange.scratch().offsets);
  AllReduceUse use(exchange);
  return run_course(exchange,
                    {.first_chunk = exchange.rank(),
                     .steps = 2 * (exchange.size() - 1),
                     .segment = exchange.segment()},
                    use);
}

Status ring_reduce_scatter(Exchange& exchange) {
  const Collective& call = exchange.call();
  piece_offsets(call.counts, size_of(call.type), call.in.size(), exchange.size(),
                exchange.scratch().offsets);
  ReduceScatterUse use(exchange);
  return run_course(exchange,
                    {.first_chunk = exchange.before(1),
                     .steps = exchange.size() - 1,
                     .segment = exchange.segment(),
                     .block = exchange.window()},
                    use);
}

Status ring_all_gather(Exchange& exchange) {
  const Collective& call = exchange.call();
  std::vector<std::size_t>& offsets = exchange.scratch().offsets;
  piece_offsets(call.counts, size_of(call.type), call.out.size(), exchange.size(), offsets);
  AllGatherUse use(exchange);
  copy_bytes(call.in, piece_of(call.out, offsets, exchange.rank()));
  return run_course(
      exchange,
      {.first_chunk = exchange.rank(), .steps = exchange.size() - 1, .segment = exchange.segment()},
      use);
}

Status hand_round(Exchange& exchange, std::size_t segment) {
  AllGatherUse use(exchange);
  return run_course(exchange,
                    {.first_chunk = exchange.rank(),
                     .steps = exchange.size() - 1,
                     .segment = segment,
                     .own_sent = true},
                    use);
}

}  // namespace gradpress::comm
