// Sums of two-byte floats: every rank gets its shard of everyone's buffer, sums it in float32 in
// rank order and rounds once. A ring would round at every step.
#include <algorithm>
#include <cstring>

#include "comm/exchange.h"
#include "comm/half.h"

namespace gradpress::comm {

namespace {

/// Segments per peer whose receive is posted ahead.
constexpr std::size_t kShardWindow = 4;
/// All peers' segments of one window together, if that leaves a sensible message.
constexpr std::size_t kShardScratch = std::size_t{4} << 20;

std::size_t shard_segment(const Exchange& exchange) {
  const std::size_t fair = kShardScratch / kShardWindow / exchange.size() / 64 * 64;
  return std::clamp(fair, std::size_t{16} << 10, exchange.segment());
}

/// sums (+)= the two-byte floats in `bytes`.
template <class Convert>
void accumulate(ConstBytes bytes, bool first, Convert to_float, std::span<float> sums) {
  const auto* values = reinterpret_cast<const std::uint16_t*>(bytes.data());
  if (first) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = to_float(values[i]);
  } else {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += to_float(values[i]);
  }
}

void accumulate(ConstBytes bytes, bool first, DataType type, std::span<float> sums) {
  if (type == DataType::kFloat16) {
    accumulate(bytes, first, float16_to_float, sums);
  } else {
    accumulate(bytes, first, bfloat16_to_float, sums);
  }
}

void round_sums(std::span<const float> sums, DataType type, Bytes out) {
  auto* values = reinterpret_cast<std::uint16_t*>(out.data());
  if (type == DataType::kFloat16) {
    std::transform(sums.begin(), sums.end(), values, float_to_float16);
  } else {
    std::transform(sums.begin(), sums.end(), values, float_to_bfloat16);
  }
}

/// The first part of all three: exchanges shards and writes this rank's sum to `result`, which may
/// be this rank's own shard of the input. `summed` gets each segment of it as soon as it is there.
/// Requires: scratch().offsets describe the shards.
template <class Summed>
Status sum_shards(Exchange& exchange, Bytes result, Summed summed) {
  const Collective& call = exchange.call();
  Scratch& scratch = exchange.scratch();
  const unsigned size = exchange.size();
  const unsigned rank = exchange.rank();
  const std::size_t segment = shard_segment(exchange);
  const ConstBytes own = piece_of(call.in, scratch.offsets, rank);
  exchange.stage("exchange of shards");
  std::size_t most = 0;
  for (unsigned peer = 0; peer < size; ++peer) {
    most = std::max(most, scratch.offsets[peer + 1] - scratch.offsets[peer]);
  }
  // All of it at once: nothing but receives bounds the memory. First segments first.
  for (std::size_t i = 0; i < segment_count(most, segment); ++i) {
    for (unsigned step = 1; step < size; ++step) {
      const unsigned to = exchange.after(step);
      const ConstBytes shard = piece_of(call.in, scratch.offsets, to);
      if (i * segment < shard.size()) exchange.send(to, segment_of(shard, segment, i));
    }
  }
  const std::size_t slots = kShardWindow * size * segment;
  if (scratch.slots.size() < slots) scratch.slots.resize(slots);
  if (scratch.sums.size() < segment / 2) scratch.sums.resize(segment / 2);
  const auto slot = [&](std::size_t index, unsigned from) {
    return Bytes(scratch.slots)
        .subspan((index % kShardWindow * size + from) * segment,
                 segment_of(own, segment, index).size());
  };
  const std::size_t segments = segment_count(own.size(), segment);
  std::size_t posted = 0;
  for (std::size_t index = 0; index < segments; ++index) {
    for (; posted < std::min(segments, index + kShardWindow); ++posted) {
      for (unsigned step = 1; step < size; ++step) {
        exchange.post(exchange.before(step), slot(posted, exchange.before(step)));
      }
    }
    for (unsigned step = 1; step < size; ++step) {
      const Status status = exchange.receive(exchange.before(step));
      if (!status.is_ok()) return status;
    }
    const ConstBytes mine = segment_of(own, segment, index);
    const std::span sums = std::span(scratch.sums).first(mine.size() / 2);
    for (unsigned peer = 0; peer < size; ++peer) {
      accumulate(peer == rank ? mine : ConstBytes(slot(index, peer)), peer == 0, call.type, sums);
    }
    const Bytes rounded = segment_of(result, segment, index);
    round_sums(sums, call.type, rounded);
    summed(rounded);
  }
  return {};
}

void shard_offsets(Exchange& exchange) {
  const Collective& call = exchange.call();
  piece_offsets(call.counts, size_of(call.type), call.in.size(), exchange.size(),
                exchange.scratch().offsets);
}

}  // namespace

Status sharded_all_reduce(Exchange& exchange) {
  shard_offsets(exchange);
  const Bytes shard = piece_of(exchange.call().out, exchange.scratch().offsets, exchange.rank());
  const unsigned next = exchange.after(1);
  const Status status =
      sum_shards(exchange, shard, [&](ConstBytes summed) { exchange.send(next, summed); });
  return status.is_ok() ? hand_round(exchange, shard_segment(exchange)) : status;
}

Status sharded_reduce_scatter(Exchange& exchange) {
  shard_offsets(exchange);
  const Status status = sum_shards(exchange, exchange.call().out, [](ConstBytes) {});
  return status.is_ok() ? exchange.finish_sends() : status;
}

Status sharded_reduce(Exchange& exchange) {
  const Collective& call = exchange.call();
  shard_offsets(exchange);
  const std::vector<std::size_t>& offsets = exchange.scratch().offsets;
  const std::size_t segment = shard_segment(exchange);
  const bool root = exchange.rank() == call.root;
  std::vector<std::byte>& own = exchange.scratch().shard;
  const std::size_t own_bytes = offsets[exchange.rank() + 1] - offsets[exchange.rank()];
  if (!root && own.size() < own_bytes) own.resize(own_bytes);
  const Bytes result =
      root ? piece_of(call.out, offsets, exchange.rank()) : Bytes(own).first(own_bytes);
  Status status = sum_shards(exchange, result, [&](ConstBytes summed) {
    if (!root) exchange.send(call.root, summed);
  });
  if (!status.is_ok()) return status;
  exchange.stage("gather");
  if (root) {
    for (unsigned step = 1; step < exchange.size(); ++step) {
      exchange.post_segments(exchange.after(step),
                             piece_of(call.out, offsets, exchange.after(step)), segment);
    }
    for (unsigned step = 1; step < exchange.size(); ++step) {
      const unsigned from = exchange.after(step);
      status = exchange.receive_segments(from, offsets[from + 1] - offsets[from], segment);
      if (!status.is_ok()) return status;
    }
  }
  return exchange.finish_sends();
}

}  // namespace gradpress::comm
