#include "sync/route.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "comm/traffic.h"
#include "sync/holdings.h"

namespace gradpress::sync {

namespace {

using plan::Action;
using plan::ActionKind;
using plan::Collective;
using plan::Step;

bool adds_numbers(const Action& action) {
  return action.collective == Collective::kAllReduce ||
         action.collective == Collective::kReduceScatter ||
         action.collective == Collective::kReduce;
}

CollectiveKind kind_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return CollectiveKind::kAllReduce;
    case Collective::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case Collective::kReduce:
      return CollectiveKind::kReduce;
    case Collective::kAllGather:
      return CollectiveKind::kAllGather;
    case Collective::kBroadcast:
      return CollectiveKind::kBroadcast;
    case Collective::kAllToAll:
      return CollectiveKind::kAllToAll;
    case Collective::kGather:
      return CollectiveKind::kGather;
  }
  return CollectiveKind::kBarrier;
}

constexpr std::size_t kFloat = sizeof(float);

std::vector<std::uint64_t> vector_elements(const RouteInput& input) {
  std::vector<std::uint64_t> elements;
  for (const std::vector<std::size_t>& round : input.vector_bytes) {
    std::uint64_t sum = 0;
    for (const std::size_t bytes : round) sum += bytes / kFloat;
    elements.push_back(sum);
  }
  return elements;
}

/// Walks along the actions with the place of what this rank holds.
class Compiler {
 public:
  explicit Compiler(const RouteInput& input)
      : input_(input),
        vector_elements_(vector_elements(input)),
        holdings_({.option = input.option,
                   .topology = input.topology,
                   .elements = input.elements,
                   .vector_elements = vector_elements_}),
        actions_(input.option.actions()),
        members_(input.elements.size()) {
    find_ends();
  }

  Route compile() {
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      switch (actions_[i].kind) {
        case ActionKind::kComp:
          route_.tasks.push_back(comp(i));
          break;
        case ActionKind::kDecomp:
          route_.tasks.push_back(decomp(i));
          break;
        case ActionKind::kComm:
          route_.tasks.push_back(actions_[i].encoded ? encoded_comm(i) : raw_comm(i));
          break;
      }
    }
    return std::move(route_);
  }

 private:
  bool as_vector() const { return !vector_elements_.empty(); }
  const Holding& held(std::size_t point) { return holdings_.at(point, input_.rank); }

  std::uint32_t new_buffer(std::size_t bytes) {
    route_.buffer_bytes.push_back(bytes);
    return static_cast<std::uint32_t>(route_.buffer_bytes.size() - 1);
  }

  /// Where the result is formed, and from where on data is only gathered.
  void find_ends() {
    const std::uint64_t workers = input_.topology.workers();
    std::optional<std::size_t> last_decomp;
    std::size_t completes = 0;
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      if (actions_[i].kind == ActionKind::kDecomp) last_decomp = i;
      // A group of one completes nothing, but is the place to scale at when it is the last sum.
      const bool sums = actions_[i].kind == ActionKind::kComm && actions_[i].step != Step::kSecond;
      if (sums) completes = i;
    }
    const bool decomp_completes =
        last_decomp && holdings_.point(*last_decomp).covers == workers && completes < *last_decomp;
    scales_at_ = decomp_completes ? *last_decomp : completes;
    tail_ = last_decomp ? std::max(*last_decomp, completes) : completes;
  }

  bool is_last(std::size_t action) const { return action + 1 == actions_.size(); }
  /// Whether what `action` makes may lie in the gradient already: only gathering is left.
  bool to_gradient(std::size_t action) const { return members_ == 1 && action >= tail_; }

  // --- raw data

  /// Bytes of each member's piece, side by side in a buffer from `offset` on.
  std::vector<Area> side_by_side(const Partition& partition, std::uint32_t shard,
                                 std::uint32_t buffer, std::size_t offset = 0) const {
    std::vector<Area> areas;
    for (std::size_t member = 0; member < members_; ++member) {
      const std::size_t bytes = partition.piece(member, shard).count * kFloat;
      areas.push_back({.at = {.buffer = buffer, .offset = offset}, .bytes = bytes});
      offset += bytes;
    }
    return areas;
  }
  std::vector<Area> in_gradients(const Partition& partition, std::uint32_t shard) const {
    std::vector<Area> areas;
    for (std::uint32_t member = 0; member < members_; ++member) {
      const ShardRange piece = partition.piece(member, shard);
      areas.push_back({.at = {.buffer = Spot::kGradients,
                              .member = member,
                              .offset = static_cast<std::size_t>(piece.begin) * kFloat},
                       .bytes = static_cast<std::size_t>(piece.count) * kFloat});
    }
    return areas;
  }
  static std::vector<Transfer> transfers(const std::vector<Area>& from,
                                         const std::vector<Area>& to) {
    std::vector<Transfer> all;
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i].bytes > 0) {
        all.push_back({.from = from[i].at, .to = to[i].at, .bytes = from[i].bytes});
      }
    }
    return all;
  }
  /// One area of everything, where the members lie side by side.
  static Area joined(const std::vector<Area>& areas) {
    Area all = areas.front();
    all.bytes = 0;
    for (const Area& area : areas) all.bytes += area.bytes;
    return all;
  }
  static void append(std::vector<Area>& areas, const std::vector<Area>& more) {
    areas.insert(areas.end(), more.begin(), more.end());
  }

  /// This rank's raw data before `action`.
  std::vector<Area> raw_areas(std::size_t action) {
    const Partition& partition = holdings_.partition(action);
    const std::uint32_t shard = held(action).first;
    return raw_in_gradient_ ? in_gradients(partition, shard)
                            : side_by_side(partition, shard, raw_buffer_);
  }
  /// The same as one area, packed first if need be.
  Area packed(std::size_t action, CommTask& task) {
    const std::vector<Area> areas = raw_areas(action);
    if (!raw_in_gradient_ || members_ == 1) return joined(areas);
    const std::size_t bytes = joined(areas).bytes;
    const std::vector<Area> side =
        side_by_side(holdings_.partition(action), held(action).first, new_buffer(bytes));
    task.before = transfers(areas, side);
    return joined(side);
  }

  Task raw_comm(std::size_t action) {
    const Action& what = actions_[action];
    if (held(action).idle && held(action + 1).idle) return IdleTask{};
    CommTask task{.phase = what.phase,
                  .kind = kind_of(what.collective),
                  .type = DataType::kFloat32,
                  .scales = scales_at_ == action,
                  .last = is_last(action)};
    switch (what.collective) {
      case Collective::kAllReduce:
        task.in = task.out = packed(action, task);
        raw_lies_at(task.out);
        break;
      case Collective::kReduceScatter:
        reduce_scatter(action, task);
        break;
      case Collective::kReduce:
        task.in = packed(action, task);
        if (!held(action + 1).idle) {
          task.out = {.at = {.buffer = new_buffer(task.in.bytes)}, .bytes = task.in.bytes};
          raw_lies_at(task.out);
        }
        break;
      case Collective::kAllGather:
        all_gather(action, task);
        break;
      case Collective::kBroadcast:
        broadcast(action, task);
        break;
      default:
        break;
    }
    if (adds_numbers(what) && !held(action + 1).idle)
      add_probes(action, {joined(raw_areas(action + 1))}, task);
    if (task.last && !raw_in_gradient_) finish_in_gradients(action, task);
    task.sent = sent(task, action);
    return task;
  }

  void raw_lies_at(const Area& area) {
    raw_in_gradient_ = area.at.in_gradients();
    raw_buffer_ = area.at.buffer;
  }

  void reduce_scatter(std::size_t action, CommTask& task) {
    const Partition& finer = holdings_.partition(action + 1);
    const unsigned size = holdings_.group_size(actions_[action].phase);
    const std::uint32_t first = held(action).first * size;
    std::vector<Area> pieces;  // by peer, then member
    std::vector<Area> packed_pieces;
    const std::vector<Area> whole = raw_areas(action);
    const std::uint32_t pack = members_ == 1 ? 0 : new_buffer(joined(whole).bytes);
    std::size_t offset = 0;
    for (std::uint32_t shard = first; shard < first + size; ++shard) {
      append(pieces, parts_of(whole, action, shard));
      append(packed_pieces, side_by_side(finer, shard, pack, offset));
      const std::size_t elements = finer.elements(shard);
      task.counts.push_back(elements);
      offset += elements * kFloat;
    }
    if (members_ > 1) {
      task.before = transfers(pieces, packed_pieces);
      task.in = joined(packed_pieces);
    } else {
      task.in = joined(whole);
    }
    const std::size_t bytes = finer.elements(held(action + 1).first) * kFloat;
    task.out = {.at = {.buffer = new_buffer(bytes)}, .bytes = bytes};
    raw_lies_at(task.out);
  }

  /// A finer shard's pieces inside `whole`, this rank's data before `action`.
  std::vector<Area> parts_of(const std::vector<Area>& whole, std::size_t action,
                             std::uint32_t shard) {
    return parts(whole, holdings_.partition(action), held(action).first,
                 holdings_.partition(action + 1), shard);
  }
  std::vector<Area> parts(const std::vector<Area>& whole, const Partition& coarse,
                          std::uint32_t coarse_shard, const Partition& fine,
                          std::uint32_t fine_shard) const {
    std::vector<Area> areas;
    for (std::size_t member = 0; member < members_; ++member) {
      const ShardRange piece = fine.piece(member, fine_shard);
      const std::uint64_t skip = piece.begin - coarse.piece(member, coarse_shard).begin;
      Area area{.at = whole[member].at, .bytes = static_cast<std::size_t>(piece.count) * kFloat};
      area.at.offset += static_cast<std::size_t>(skip) * kFloat;
      areas.push_back(area);
    }
    return areas;
  }

  /// Where gathered data lands: its area side by side, or the gradient.
  std::vector<Area> landing(std::size_t action) {
    const Partition& partition = holdings_.partition(action + 1);
    const std::uint32_t shard = held(action + 1).first;
    if (to_gradient(action)) return in_gradients(partition, shard);
    return side_by_side(partition, shard, new_buffer(partition.elements(shard) * kFloat));
  }

  void all_gather(std::size_t action, CommTask& task) {
    const Partition& fine = holdings_.partition(action);
    const Partition& coarse = holdings_.partition(action + 1);
    const unsigned size = holdings_.group_size(actions_[action].phase);
    const std::uint32_t first = held(action + 1).first * size;
    task.in = joined(raw_areas(action));
    // Several members come packed and are copied to their places anyway: at the end, to the last.
    const std::vector<Area> whole = members_ > 1 && is_last(action)
                                        ? in_gradients(coarse, held(action + 1).first)
                                        : landing(action);
    const std::uint32_t pack = members_ == 1 ? 0 : new_buffer(joined(whole).bytes);
    std::vector<Area> pieces;
    std::vector<Area> packed_pieces;
    std::size_t offset = 0;
    for (std::uint32_t shard = first; shard < first + size; ++shard) {
      append(pieces, parts(whole, coarse, held(action + 1).first, fine, shard));
      append(packed_pieces, side_by_side(fine, shard, pack, offset));
      task.counts.push_back(fine.elements(shard));
      offset += fine.elements(shard) * kFloat;
    }
    if (members_ > 1) {
      task.out = joined(packed_pieces);
      task.after = transfers(packed_pieces, pieces);
    } else {
      task.out = joined(whole);
    }
    add_probes(action, members_ > 1 ? packed_pieces : pieces, task);
    raw_lies_at(whole.front());
  }

  void broadcast(std::size_t action, CommTask& task) {
    const bool root = holdings_.place(actions_[action].phase, input_.rank) == 0;
    if (root) {
      task.in = packed(action, task);
      if (to_gradient(action) && !raw_in_gradient_) {
        const std::vector<Area> from = raw_areas(action);
        const std::vector<Area> to = landing(action);
        task.after = transfers(from, to);
        raw_lies_at(to.front());
      }
      return;
    }
    const std::vector<Area> to = landing(action);
    task.out = joined(to);
    add_probes(action, to, task);
    raw_lies_at(to.front());
  }

  /// What the last stage leaves in a buffer goes to the gradients.
  void finish_in_gradients(std::size_t action, CommTask& task) {
    task.after = transfers(raw_areas(action + 1), in_gradients(holdings_.partition(action + 1), 0));
  }

  void add_probes(std::size_t action, const std::vector<Area>& areas, CommTask& task) {
    const bool decoded = std::ranges::any_of(actions_.first(action), [](const Action& before) {
      return before.kind == ActionKind::kDecomp;
    });
    if (!decoded && action <= scales_at_) return;
    for (const Area& area : areas) {
      if (area.bytes > 0) task.probes.push_back(area.at);
    }
  }

  // --- encoded data

  /// Layouts of the shards of a point, made when first needed.
  const codec::FrameLayout* layout(std::size_t point, std::uint32_t shard) {
    const std::size_t partition = holdings_.point(point).partition;
    const auto [found, is_new] = layouts_.try_emplace({partition, shard}, nullptr);
    if (!is_new) return found->second;
    std::vector<codec::FrameLayout::Area> areas;
    for (std::size_t member = 0; member < members_; ++member) {
      const ShardRange piece = holdings_.partition(point).piece(member, shard);
      areas.push_back(
          {.bound_bytes = input_.codecs[member]->payload_bound(Shape::flat(piece.count)),
           .fixed = input_.codecs[member]->traits().fixed_size});
    }
    found->second = &route_.layouts.emplace_back(areas, wrapping());
    return found->second;
  }
  const codec::FrameLayout* vector_layout(unsigned round) {
    std::vector<codec::FrameLayout::Area> areas;
    for (const std::size_t bytes : input_.vector_bytes[round])
      areas.push_back({.bound_bytes = bytes});
    return &route_.layouts.emplace_back(areas, codec::FrameLayout::Wrapping::kBare);
  }
  codec::FrameLayout::Wrapping wrapping() const {
    return framed_ ? codec::FrameLayout::Wrapping::kFramed : codec::FrameLayout::Wrapping::kBare;
  }
  std::size_t block_bytes(std::size_t point, std::uint32_t shard) {
    if (as_vector()) return holdings_.partition(point).elements(shard) * kFloat;
    return layout(point, shard)->bytes();
  }
  std::size_t blocks_bytes(std::size_t point, std::span<const Block> blocks) {
    std::size_t bytes = 0;
    for (const Block& block : blocks) bytes += block_bytes(point, block.shard);
    return bytes;
  }
  /// Where the blocks of a holding lie in its buffer.
  std::vector<PlacedBlock> placed(std::size_t point, std::span<const Block> blocks) {
    std::vector<PlacedBlock> all;
    std::size_t offset = 0;
    for (const Block& block : blocks) {
      all.push_back({.shard = block.shard,
                     .sender = block.sender,
                     .offset = offset,
                     .layout = as_vector() ? nullptr : layout(point, block.shard)});
      offset += block_bytes(point, block.shard);
    }
    return all;
  }

  Task comp(std::size_t action) {
    framed_ = true;
    for (const Action& later : actions_.subspan(action + 1)) {
      if (later.kind != ActionKind::kComm) break;
      if (adds_numbers(later)) framed_ = false;
    }
    if (held(action + 1).idle) return IdleTask{};
    const Point& point = holdings_.point(action + 1);
    const Holding& holding = held(action + 1);
    EncodeTask task{.site = point.site,
                    .round = point.round,
                    .framed = framed_,
                    .as_vector = as_vector(),
                    .counted = !point.replicated || input_.topology.machine_of(input_.rank) == 0,
                    .first_shard = holding.first,
                    .source = holding.source,
                    .shards = holding.count};
    if (point.round > 0) {
      task.reduced = {.at = {.buffer = encoded_buffer_}, .bytes = encoded_bytes_};
      task.reduced_layout = encoded_layout_;
      task.inputs = inputs_;
      task.begins = begins_;
    } else {
      task.inputs = raw_areas(action);
      for (std::size_t member = 0; member < members_; ++member) {
        task.begins.push_back(holdings_.partition(action).piece(member, held(action).first).begin);
      }
      inputs_ = task.inputs;
      begins_ = task.begins;
    }
    if (as_vector()) {
      encoded_layout_ = vector_layout(point.round);
      task.shards = 1;
      task.blocks = {{.shard = 0, .sender = input_.rank, .offset = 0, .layout = encoded_layout_}};
      encoded_bytes_ = encoded_layout_->bytes();
    } else {
      task.blocks = placed(action + 1, holding.blocks);
      encoded_bytes_ = blocks_bytes(action + 1, holding.blocks);
    }
    encoded_buffer_ = task.buffer = new_buffer(encoded_bytes_);
    task.bytes = encoded_bytes_;
    return task;
  }

  Task decomp(std::size_t action) {
    if (held(action).idle) return IdleTask{};
    DecodeTask task{.site = holdings_.point(action).site,
                    .framed = framed_,
                    .as_vector = as_vector(),
                    .scales = scales_at_ == action,
                    .buffer = encoded_buffer_,
                    .bytes = encoded_bytes_};
    if (as_vector()) {
      task.blocks = {{.shard = 0, .sender = input_.rank, .offset = 0, .layout = encoded_layout_}};
      task.partition = &route_.partitions.emplace_back(Partition::whole(input_.elements));
    } else {
      task.blocks = placed(action, held(action).blocks);
      std::ranges::stable_sort(task.blocks, [](const PlacedBlock& a, const PlacedBlock& b) {
        return std::pair(a.shard, a.sender) < std::pair(b.shard, b.sender);
      });
      task.partition = &route_.partitions.emplace_back(holdings_.partition(action));
      task.first = held(action).first;
    }
    task.outputs = is_last(action)
                       ? in_gradients(holdings_.partition(action + 1), held(action + 1).first)
                       : landing(action);
    raw_lies_at(task.outputs.front());
    return task;
  }

  Task encoded_comm(std::size_t action) {
    const Action& what = actions_[action];
    const Holding& before = held(action);
    const Holding& after = held(action + 1);
    if (before.idle && after.idle) return IdleTask{};
    CommTask task{.phase = what.phase, .kind = kind_of(what.collective)};
    if (adds_numbers(what)) task.type = input_.payload_type;
    if (!before.idle) {
      task.in = {.at = {.buffer = encoded_buffer_}, .bytes = encoded_bytes_};
    }
    const std::size_t unit = size_of(task.type);
    for (const unsigned peer : holdings_.group(what.phase, input_.rank)) {
      switch (what.collective) {
        case Collective::kAllToAll:
          task.counts.push_back(blocks_bytes(action, between(action, input_.rank, peer)));
          task.receive_counts.push_back(blocks_bytes(action, between(action, peer, input_.rank)));
          break;
        case Collective::kAllGather:
        case Collective::kGather:
          task.counts.push_back(blocks_bytes(action, holdings_.at(action, peer).blocks));
          break;
        case Collective::kReduceScatter:
          task.counts.push_back(blocks_bytes(action + 1, holdings_.at(action + 1, peer).blocks) /
                                unit);
          break;
        default:
          break;
      }
    }
    if (what.collective == Collective::kAllToAll) sort_by_destination(action, task);
    const bool root = holdings_.place(what.phase, input_.rank) == 0;
    if (what.collective == Collective::kBroadcast && root) {
      task.sent = sent(task, action);
      return task;
    }
    if (what.collective == Collective::kBroadcast) task.in = {};
    if (!after.idle) {
      encoded_bytes_ = blocks_bytes(action + 1, after.blocks);
      encoded_buffer_ = new_buffer(encoded_bytes_);
      task.out = {.at = {.buffer = encoded_buffer_}, .bytes = encoded_bytes_};
    }
    task.sent = sent(task, action);
    return task;
  }

  /// What goes from one rank to another in an all-to-all, in the order it lies at the sender.
  std::vector<Block> between(std::size_t action, unsigned from, unsigned to) {
    std::vector<Block> blocks;
    const Holding& receiver = holdings_.at(action + 1, to);
    for (const Block& block : holdings_.at(action, from).blocks) {
      if (block.shard - receiver.first < receiver.count && block.shard >= receiver.first) {
        blocks.push_back(block);
      }
    }
    return blocks;
  }

  /// After one all-to-all the blocks lie by sender; a second one wants them by destination.
  void sort_by_destination(std::size_t action, CommTask& task) {
    std::vector<PlacedBlock> blocks = placed(action, held(action).blocks);
    if (std::ranges::is_sorted(blocks, {}, &PlacedBlock::shard)) return;
    std::ranges::stable_sort(blocks, {}, &PlacedBlock::shard);
    const std::uint32_t pack = new_buffer(task.in.bytes);
    std::size_t offset = 0;
    for (const PlacedBlock& block : blocks) {
      const std::size_t bytes = block_bytes(action, block.shard);
      task.before.push_back({.from = {.buffer = task.in.at.buffer, .offset = block.offset},
                             .to = {.buffer = pack, .offset = offset},
                             .bytes = bytes});
      offset += bytes;
    }
    task.in.at = {.buffer = pack};
  }

  SentBytes sent(const CommTask& task, std::size_t action) {
    std::vector<std::size_t> piece_bytes = task.counts;
    for (std::size_t& bytes : piece_bytes) bytes *= size_of(task.type);
    return comm::sent_in({.kind = task.kind,
                          .type = task.type,
                          .piece_bytes = piece_bytes,
                          .bytes = std::max(task.in.bytes, task.out.bytes)},
                         holdings_.place(actions_[action].phase, input_.rank),
                         holdings_.group(actions_[action].phase, input_.rank), input_.topology);
  }

  const RouteInput& input_;
  const std::vector<std::uint64_t> vector_elements_;
  Holdings holdings_;
  const std::span<const Action> actions_;
  const std::size_t members_;

  std::size_t scales_at_ = 0;  ///< the action that makes the result of the sum
  std::size_t tail_ = 0;       ///< after it, data is only gathered

  bool raw_in_gradient_ = true;
  std::uint32_t raw_buffer_ = 0;
  bool framed_ = true;
  std::uint32_t encoded_buffer_ = 0;
  std::size_t encoded_bytes_ = 0;
  const codec::FrameLayout* encoded_layout_ = nullptr;
  std::vector<Area> inputs_;
  std::vector<std::uint64_t> begins_;
  std::map<std::pair<std::size_t, std::uint32_t>, const codec::FrameLayout*> layouts_;
  Route route_;
};

}  // namespace

Route make_route(const RouteInput& input) { return Compiler(input).compile(); }

}  // namespace gradpress::sync
