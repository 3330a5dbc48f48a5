#include "collective_timer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "comm/half.h"

namespace gradpress::cli {

namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

/// Small whole numbers, so that sums over thousands of workers stay exact in every type: the sum of
/// p ones is p, rounded by the type where it must be.
float value_of(unsigned rank) { return rank % 2 == 0 ? 1.0F : 2.0F; }

float sum_of(unsigned workers) {
  float sum = 0.0F;
  for (unsigned rank = 0; rank < workers; ++rank) sum += value_of(rank);
  return sum;
}

void store(DataType type, float value, std::byte* place) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t half =
      type == DataType::kFloat16 ? comm::float_to_float16(value) : comm::float_to_bfloat16(value);
  if (size_of(type) == sizeof bits) {
    std::memcpy(place, &bits, sizeof bits);
  } else {
    std::memcpy(place, &half, sizeof half);
  }
}

void fill(DataType type, float value, std::span<std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); i += size_of(type)) {
    store(type, value, bytes.data() + i);
  }
}

std::uint64_t count_wrong(DataType type, float value, std::span<const std::byte> bytes) {
  std::array<std::byte, 4> want{};
  store(type, value, want.data());
  const std::size_t unit = size_of(type);
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < bytes.size(); i += unit) {
    wrong += std::memcmp(bytes.data() + i, want.data(), unit) != 0 ? 1 : 0;
  }
  return wrong;
}

/// One worker's buffers for one collective.
class Buffers {
 public:
  Buffers(const Group& group, CollectiveKind kind, DataType type, std::size_t bytes)
      : kind_(kind), type_(type), rank_(group.rank()), size_(group.size()) {
    const bool root = rank_ == 0;
    std::size_t in = bytes;
    std::size_t out = bytes;
    switch (kind) {
      case CollectiveKind::kReduceScatter:
        out = bytes / size_;
        break;
      case CollectiveKind::kAllGather:
        out = bytes * size_;
        break;
      case CollectiveKind::kGather:
        out = root ? bytes * size_ : 0;
        break;
      case CollectiveKind::kReduce:
        out = root ? bytes : 0;
        break;
      case CollectiveKind::kBroadcast:
        in = root ? bytes : 0;
        out = root ? 0 : bytes;
        break;
      case CollectiveKind::kBarrier:
        in = out = 0;
        break;
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kAllToAll:
        break;
    }
    in_.resize(in);
    out_.resize(out);
    fill(type, value_of(rank_), in_);
  }

  Collective call() {
    return {.kind = kind_, .type = type_, .in = in_, .out = out_, .tensor = "bench"};
  }

  /// After a failure.
  void give_to(std::vector<std::byte>& in, std::vector<std::byte>& out) {
    in = std::move(in_);
    out = std::move(out_);
  }

  /// Elements of the output that are wrong after one call.
  std::uint64_t wrong() const {
    switch (kind_) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kReduce:
        return count_wrong(type_, sum_of(size_), out_);
      case CollectiveKind::kAllGather:
      case CollectiveKind::kAllToAll:
      case CollectiveKind::kGather: {
        const std::size_t piece = out_.size() / size_;
        std::uint64_t wrong = 0;
        for (unsigned rank = 0; rank < size_; ++rank) {
          wrong += count_wrong(type_, value_of(rank), std::span(out_).subspan(rank * piece, piece));
        }
        return wrong;
      }
      case CollectiveKind::kBroadcast:
        return count_wrong(type_, value_of(0), out_);
      case CollectiveKind::kBarrier:
        return 0;
    }
    return 0;
  }

 private:
  CollectiveKind kind_;
  DataType type_;
  unsigned rank_;
  unsigned size_;
  std::vector<std::byte> in_;
  std::vector<std::byte> out_;
};

/// What the workers' threads share.
struct Shared {
  std::atomic<bool> failed = false;
  std::atomic<std::uint64_t> wrong = 0;
  std::vector<Status> statuses;
  std::vector<std::uint64_t> sent;
};

std::uint64_t all_sent(const Group& group) {
  const SentBytes sent = group.sent_bytes();
  return sent.intra + sent.inter;
}

Status wrong_answer(CollectiveKind kind, std::uint64_t elements) {
  return Status::error(Code::kInternal, collective_name(kind), ": ", elements,
                       " elements are wrong, nothing was timed");
}

/// Every rank's values, rank by rank, through the group itself. Requires: as many on every rank.
template <class T>
Result<std::vector<T>> gathered(Group& group, const std::vector<T>& own) {
  std::vector<T> all(own.size() * group.size());
  const Status status = group.run({.kind = CollectiveKind::kAllGather,
                                   .in = std::as_bytes(std::span(own)),
                                   .out = std::as_writable_bytes(std::span(all)),
                                   .tensor = "the bench's notes"});
  if (!status.is_ok()) return tl::unexpected(status);
  return all;
}

}  // namespace

Result<CollectiveCost> CollectiveTimer::cost(CollectiveKind kind, DataType type, std::size_t bytes,
                                             const Turns& turns) {
  return has_all_ends() ? cost_among_threads(kind, type, bytes, turns)
                        : cost_among_processes(kind, type, bytes, turns);
}

Result<CollectiveCost> CollectiveTimer::cost_among_threads(CollectiveKind kind, DataType type,
                                                           std::size_t bytes, const Turns& turns) {
  Shared shared;
  shared.statuses.resize(ends_.size());
  shared.sent.resize(ends_.size());
  SteadyTime mark;
  std::barrier together(static_cast<std::ptrdiff_t>(ends_.size()),
                        [&mark]() noexcept { mark = std::chrono::steady_clock::now(); });
  std::vector<double> times;
  const auto work = [&](Group& group) {
    const unsigned rank = group.rank();
    Buffers buffers(group, kind, type, bytes);
    const auto run = [&] {
      if (!shared.statuses[rank].is_ok()) return;
      shared.statuses[rank] = group.run(buffers.call());
      if (shared.statuses[rank].is_ok()) return;
      buffers.give_to(kept_[std::size_t{2} * rank], kept_[std::size_t{2} * rank + 1]);
      shared.failed = true;
    };
    const std::uint64_t before = all_sent(group);
    run();
    shared.sent[rank] = all_sent(group) - before;
    if (!shared.failed) shared.wrong += buffers.wrong();
    for (unsigned turn = 0; turn < turns.warmup + turns.timed; ++turn) {
      // All see the same here: nobody writes these between the two barriers.
      together.arrive_and_wait();
      const bool stop = shared.failed || shared.wrong > 0;
      together.arrive_and_wait();
      if (stop) return;
      const SteadyTime start = mark;
      run();
      together.arrive_and_wait();
      const double us = std::chrono::duration<double, std::micro>(mark - start).count();
      if (rank == 0 && turn >= turns.warmup) times.push_back(us);
    }
  };
  std::vector<std::thread> threads;
  for (const auto& group : ends_) {
    threads.emplace_back([&work, end = group.get()] { work(*end); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : shared.statuses) {
    if (!status.is_ok()) return tl::unexpected(status);
  }
  if (shared.wrong > 0) return tl::unexpected(wrong_answer(kind, shared.wrong));
  return CollectiveCost{.count = bytes / size_of(type),
                        .us = spread_of(std::move(times)),
                        .wrong = shared.wrong,
                        .wire_bytes = *std::ranges::max_element(shared.sent)};
}

Result<CollectiveCost> CollectiveTimer::cost_among_processes(CollectiveKind kind, DataType type,
                                                             std::size_t bytes,
                                                             const Turns& turns) {
  Group& group = *ends_.front();
  Buffers buffers(group, kind, type, bytes);
  const auto run = [&] {
    Status status = group.run(buffers.call());
    if (!status.is_ok()) buffers.give_to(kept_[0], kept_[1]);
    return status;
  };
  const std::uint64_t before = all_sent(group);
  Status status = run();
  if (!status.is_ok()) return tl::unexpected(status);
  // Sent and wrong, of every rank.
  const auto notes = gathered<std::uint64_t>(group, {all_sent(group) - before, buffers.wrong()});
  if (!notes) return tl::unexpected(notes.error());
  std::uint64_t most_sent = 0;
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < notes->size(); i += 2) {
    most_sent = std::max(most_sent, (*notes)[i]);
    wrong += (*notes)[i + 1];
  }
  if (wrong > 0) return tl::unexpected(wrong_answer(kind, wrong));
  std::vector<double> own;
  for (unsigned turn = 0; turn < turns.warmup + turns.timed; ++turn) {
    status = group.run({.kind = CollectiveKind::kBarrier});
    if (!status.is_ok()) return tl::unexpected(status);
    const SteadyTime start = std::chrono::steady_clock::now();
    status = run();
    if (!status.is_ok()) return tl::unexpected(status);
    const auto took = std::chrono::steady_clock::now() - start;
    if (turn >= turns.warmup) {
      own.push_back(std::chrono::duration<double, std::micro>(took).count());
    }
  }
  const auto all = gathered(group, own);
  if (!all) return tl::unexpected(all.error());
  std::vector<double> slowest = own;
  for (std::size_t i = 0; i < all->size(); ++i) {
    double& time = slowest[i % own.size()];
    time = std::max(time, (*all)[i]);
  }
  return CollectiveCost{
      .count = bytes / size_of(type), .us = spread_of(std::move(slowest)), .wire_bytes = most_sent};
}

Result<std::vector<SentBytes>> CollectiveTimer::sent_by_rank() {
  if (!has_all_ends()) return gathered<SentBytes>(*ends_.front(), {ends_.front()->sent_bytes()});
  std::vector<SentBytes> all;
  for (const auto& end : ends_) all.push_back(end->sent_bytes());
  return all;
}

CollectiveBound collective_bound(CollectiveKind kind, const comm::Topology& topology,
                                 const comm::Link& link, std::size_t bytes) {
  const double workers = topology.workers();
  const double local = topology.machines > 1 ? topology.workers_per_machine : 1;
  const auto b = static_cast<double>(bytes);
  const double rounds = std::ceil(std::log2(workers));
  const double machine_rounds =
      topology.machines > 1 ? std::ceil(std::log2(topology.machines)) : rounds;
  double messages = workers - 1;
  double moved = 0.0;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      messages *= 2;
      moved = 2 * (workers - 1) / workers * b;
      break;
    case CollectiveKind::kReduceScatter:
      moved = (workers - 1) / workers * b;
      break;
    case CollectiveKind::kAllGather:
      moved = (workers - 1) * b;
      break;
    case CollectiveKind::kAllToAll:
      moved = local * (workers - local) / workers * b;
      break;
    case CollectiveKind::kGather:
      moved = (workers - local) * b;
      break;
    case CollectiveKind::kReduce:
    case CollectiveKind::kBroadcast:
      messages = rounds;
      moved = machine_rounds * b;
      break;
    case CollectiveKind::kBarrier:
      messages = rounds;
      break;
  }
  const auto rate = static_cast<double>(link.bits_per_second);
  return {.bandwidth_us = rate > 0.0 ? moved * 8e6 / rate : 0.0,
          .latency_us = messages * static_cast<double>(link.latency.count()) * 1e-3};
}

double bus_factor(CollectiveKind kind, unsigned workers) {
  const double p = workers;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return 2 * (p - 1) / p;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return (p - 1) / p;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      return p - 1;  // of what one worker contributes
    default:
      return 1.0;
  }
}

}  // namespace gradpress::cli
