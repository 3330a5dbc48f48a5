#include "sync_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include "codec/frame.h"

namespace gradpress::cli {

namespace {

/// Small whole numbers and a few large ones, so that sums are exact and selections clear.
void fill(std::vector<float>& values, unsigned rank) {
  std::uint32_t state = 0x9E3779B9U * (rank + 1);
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    const auto level = static_cast<int>(state >> 24) - 128;
    value = static_cast<float>(level) * ((state & 0xFF00U) == 0 ? 64.0F : 1.0F);
  }
}

std::uint64_t all_sent(const sync::Fabric& fabric) {
  const SentBytes sent = fabric.sent_bytes();
  return sent.intra + sent.inter;
}

/// One worker's part.
class Worker {
 public:
  Worker(sync::Fabric& fabric, const sync::MessageSpec& spec)
      : fabric_(fabric), world_(fabric.group(plan::Phase::kFlat)), spec_(spec) {
    for (const sync::Member& member : spec.members) {
      gradients_.emplace_back(member.shape.elements());
    }
    for (auto& gradient : gradients_) spans_.emplace_back(gradient);
  }

  Result<SyncCost> run(const Turns& turns) {
    auto made = sync::Message::make(spec_, fabric_);
    if (!made) return tl::unexpected(made.error());
    message_ = std::move(*made);
    SyncCost cost;
    const std::uint64_t before = all_sent(fabric_);
    if (const auto taken = step_us(); !taken) return tl::unexpected(taken.error());
    // The barrier sends nothing but empty messages.
    const auto sent = gathered(all_sent(fabric_) - before);
    if (!sent) return tl::unexpected(sent.error());
    cost.wire_bytes = *std::ranges::max_element(*sent);
    const auto hashes = gathered(hash());
    if (!hashes) return tl::unexpected(hashes.error());
    cost.wrong = static_cast<std::uint64_t>(std::ranges::count_if(
        *hashes, [&](std::uint64_t other) { return other != hashes->front(); }));
    if (cost.wrong > 0 || !finite()) {
      return fail(Code::kInternal, spec_.members.front().codec, " by ", plan::to_text(spec_.option),
                  ": ", cost.wrong, " workers hold other or no numbers, nothing was timed");
    }
    std::vector<double> times;
    for (unsigned turn = 0; turn < turns.warmup + turns.timed; ++turn) {
      const auto taken = step_us();
      if (!taken) return tl::unexpected(taken.error());
      const auto all = gathered(static_cast<std::uint64_t>(*taken * 1e3));
      if (!all) return tl::unexpected(all.error());
      if (turn < turns.warmup) continue;
      times.push_back(static_cast<double>(*std::ranges::max_element(*all)) * 1e-3);
    }
    cost.us = spread_of(std::move(times));
    for (const auto& gradient : gradients_) cost.bytes += sizeof(float) * gradient.size();
    return cost;
  }

  std::unique_ptr<sync::Message> take_message() { return std::move(message_); }
  std::vector<std::vector<float>> take_gradients() { return std::move(gradients_); }

 private:
  Result<double> step_us() {
    for (auto& gradient : gradients_) fill(gradient, fabric_.rank());
    if (const Status status = world_.run({.kind = CollectiveKind::kBarrier}); !status.is_ok()) {
      return tl::unexpected(status);
    }
    const auto start = std::chrono::steady_clock::now();
    const auto outcome = message_->run(step_++, spans_);
    const auto end = std::chrono::steady_clock::now();
    if (!outcome) return tl::unexpected(outcome.error());
    return std::chrono::duration<double, std::micro>(end - start).count();
  }

  Result<std::vector<std::uint64_t>> gathered(std::uint64_t own) {
    std::vector<std::uint64_t> all(world_.size());
    const Status status = world_.run({.kind = CollectiveKind::kAllGather,
                                      .in = std::as_bytes(std::span(&own, 1)),
                                      .out = std::as_writable_bytes(std::span(all)),
                                      .tensor = "the bench's notes"});
    if (!status.is_ok()) return tl::unexpected(status);
    return all;
  }

  std::uint64_t hash() const {
    std::uint64_t all = 0;
    for (const auto& gradient : gradients_) {
      all = all * 31 + codec::hash_of(std::as_bytes(std::span(gradient)));
    }
    return all;
  }
  bool finite() const {
    return std::ranges::all_of(gradients_, [](const std::vector<float>& gradient) {
      return std::ranges::all_of(gradient, [](float value) { return std::isfinite(value); });
    });
  }

  sync::Fabric& fabric_;
  Group& world_;
  const sync::MessageSpec& spec_;
  std::vector<std::vector<float>> gradients_;
  std::vector<std::span<float>> spans_;
  std::unique_ptr<sync::Message> message_;
  std::uint64_t step_ = 0;
};

}  // namespace

Result<SyncTimer> SyncTimer::make(BackendWorld& world) {
  SyncTimer timer;
  timer.fabrics_.resize(world.ends.size());
  std::vector<Status> statuses(world.ends.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < world.ends.size(); ++i) {
    threads.emplace_back([&, i] {
      auto made = sync::Fabric::make(std::move(world.ends[i]), world.topology);
      if (made) {
        timer.fabrics_[i] = std::make_unique<sync::Fabric>(std::move(*made));
      } else {
        statuses[i] = made.error();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) {
    if (!status.is_ok()) return tl::unexpected(status);
  }
  return timer;
}

Result<SyncCost> SyncTimer::cost(const sync::MessageSpec& spec, const Turns& turns) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (const auto& fabric : fabrics_) workers.push_back(std::make_unique<Worker>(*fabric, spec));
  std::vector<Result<SyncCost>> costs(fabrics_.size(), Result<SyncCost>());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    threads.emplace_back([&, i] { costs[i] = workers[i]->run(turns); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& cost : costs) {
    if (cost) continue;
    for (const auto& worker : workers) {
      kept_messages_.push_back(worker->take_message());
      std::ranges::move(worker->take_gradients(), std::back_inserter(kept_gradients_));
    }
    return cost;
  }
  return costs.front();
}

}  // namespace gradpress::cli
