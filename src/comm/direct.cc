// Schedules in which the user's buffers are all the memory there is to fill: straight exchanges,
// trees, and the barrier.
#include <algorithm>
#include <array>
#include <bit>

#include "comm/exchange.h"

namespace gradpress::comm {

namespace {

/// A rank's place in a binomial tree: ranks are counted from the root; a rank's parent is itself
/// without its lowest set bit, its children add a bit below that one.
class Tree {
 public:
  explicit Tree(const Exchange& exchange) {
    const unsigned size = exchange.size();
    const unsigned root = exchange.call().root;
    const unsigned place = (exchange.rank() + size - root) % size;
    is_root_ = place == 0;
    parent_ = ((place & (place - 1)) + root) % size;
    const unsigned bits =
        is_root_ ? std::bit_width(size - 1) : static_cast<unsigned>(std::countr_zero(place));
    // Largest sub-tree first: it has the longest way to go.
    for (unsigned bit = bits; bit-- > 0;) {
      const unsigned child = place + (1U << bit);
      if (child < size) children_[count_++] = (child + root) % size;
    }
  }

  bool is_root() const { return is_root_; }
  unsigned parent() const { return parent_; }
  std::span<const unsigned> children() const { return std::span(children_).first(count_); }

 private:
  bool is_root_ = false;
  unsigned parent_ = 0;
  std::array<unsigned, 32> children_{};
  std::size_t count_ = 0;
};

/// Sums the children's segments and the rank's own, and sends the sum to the parent.
class TreeReduce {
 public:
  explicit TreeReduce(Exchange& exchange)
      : exchange_(exchange),
        call_(exchange.call()),
        tree_(exchange),
        segment_(exchange.segment() / 2),
        slot_count_(2 * exchange.window()),
        slots_(exchange.scratch().slots),
        marks_(exchange.scratch().marks) {
    const std::size_t bytes = slot_count_ * tree_.children().size() * segment_;
    if (slots_.size() < bytes) slots_.resize(bytes);
    marks_.assign(slot_count_, 0);
  }

  Status run() {
    exchange_.stage("tree");
    if (tree_.children().empty()) {
      exchange_.send_segments(tree_.parent(), call_.in, segment_);
      return exchange_.finish_sends();
    }
    const std::size_t segments = segment_count(call_.in.size(), segment_);
    std::size_t posted = 0;
    for (std::size_t index = 0; index < segments; ++index) {
      for (; posted < std::min(segments, index + exchange_.window()); ++posted) {
        const Status status = post(posted);
        if (!status.is_ok()) return status;
      }
      const Status status = sum(index);
      if (!status.is_ok()) return status;
    }
    return exchange_.finish_sends();
  }

 private:
  /// Where a child's segment lands: the first child's where the sum is formed.
  Bytes landing(std::size_t index, std::size_t child) const {
    if (child == 0 && tree_.is_root()) return segment_of(call_.out, segment_, index);
    const std::size_t slot = index % slot_count_ * tree_.children().size() + child;
    return Bytes(slots_).subspan(slot * segment_, segment_of(call_.in, segment_, index).size());
  }

  Status post(std::size_t index) {
    const Status status = exchange_.finish_sends(marks_[index % slot_count_]);
    if (!status.is_ok()) return status;
    for (std::size_t child = 0; child < tree_.children().size(); ++child) {
      exchange_.post(tree_.children()[child], landing(index, child));
    }
    return {};
  }

  Status sum(std::size_t index) {
    const Bytes total = landing(index, 0);
    for (std::size_t child = 0; child < tree_.children().size(); ++child) {
      const Status status = exchange_.receive(tree_.children()[child]);
      if (!status.is_ok()) return status;
      add_floats(
          child == 0 ? segment_of(call_.in, segment_, index) : ConstBytes(landing(index, child)),
          total);
    }
    if (!tree_.is_root()) marks_[index % slot_count_] = exchange_.send(tree_.parent(), total);
    return {};
  }

  Exchange& exchange_;
  const Collective& call_;
  const Tree tree_;
  /// Children times this many bytes are what a reduce holds per segment.
  const std::size_t segment_;
  /// Segments whose sum may be on its way to the parent while later ones are received.
  const std::size_t slot_count_;
  std::vector<std::byte>& slots_;
  std::vector<std::uint64_t>& marks_;
};

}  // namespace

Status pairwise_all_to_all(Exchange& exchange) {
  const Collective& call = exchange.call();
  Scratch& scratch = exchange.scratch();
  const unsigned size = exchange.size();
  const std::size_t unit = size_of(call.type);
  piece_offsets(call.counts, unit, call.in.size(), size, scratch.offsets);
  piece_offsets(call.receive_counts, unit, call.out.size(), size, scratch.receive_offsets);
  const auto in = [&](unsigned rank) { return piece_of(call.in, scratch.offsets, rank); };
  const auto out = [&](unsigned rank) { return piece_of(call.out, scratch.receive_offsets, rank); };
  for (unsigned step = 1; step < size; ++step) {
    exchange.post_segments(exchange.before(step), out(exchange.before(step)));
    exchange.send_segments(exchange.after(step), in(exchange.after(step)));
  }
  copy_bytes(in(exchange.rank()), out(exchange.rank()));
  for (unsigned step = 1; step < size; ++step) {
    exchange.stage("exchange", step, size - 1);
    const unsigned from = exchange.before(step);
    const Status status = exchange.receive_segments(from, out(from).size());
    if (!status.is_ok()) return status;
  }
  return exchange.finish_sends();
}

Status direct_gather(Exchange& exchange) {
  const Collective& call = exchange.call();
  exchange.stage("gather");
  if (exchange.rank() != call.root) {
    exchange.send_segments(call.root, call.in);
    return exchange.finish_sends();
  }
  std::vector<std::size_t>& offsets = exchange.scratch().offsets;
  piece_offsets(call.counts, size_of(call.type), call.out.size(), exchange.size(), offsets);
  for (unsigned step = 1; step < exchange.size(); ++step) {
    const unsigned from = exchange.after(step);
    exchange.post_segments(from, piece_of(call.out, offsets, from));
  }
  copy_bytes(call.in, piece_of(call.out, offsets, call.root));
  for (unsigned step = 1; step < exchange.size(); ++step) {
    const unsigned from = exchange.after(step);
    const Status status = exchange.receive_segments(from, offsets[from + 1] - offsets[from]);
    if (!status.is_ok()) return status;
  }
  return {};
}

Status tree_reduce(Exchange& exchange) { return TreeReduce(exchange).run(); }

Status tree_broadcast(Exchange& exchange) {
  const Collective& call = exchange.call();
  const Tree tree(exchange);
  exchange.stage("tree");
  if (!tree.is_root()) exchange.post_segments(tree.parent(), call.out);
  const ConstBytes bytes = tree.is_root() ? call.in : ConstBytes(call.out);
  for (std::size_t i = 0; i < segment_count(bytes.size(), exchange.segment()); ++i) {
    if (!tree.is_root()) {
      const Status status = exchange.receive(tree.parent());
      if (!status.is_ok()) return status;
    }
    for (const unsigned child : tree.children()) {
      exchange.send(child, segment_of(bytes, exchange.segment(), i));
    }
  }
  return exchange.finish_sends();
}

Status dissemination_barrier(Exchange& exchange) {
  const auto rounds = static_cast<unsigned>(std::bit_width(exchange.size() - 1));
  for (unsigned round = 0; round < rounds; ++round) {
    exchange.stage("round", round + 1, rounds);
    const unsigned distance = 1U << round;
    exchange.post(exchange.before(distance), {});
    exchange.send(exchange.after(distance), {});
    const Status status = exchange.receive(exchange.before(distance));
    if (!status.is_ok()) return status;
  }
  return exchange.finish_sends();
}

}  // namespace gradpress::comm
