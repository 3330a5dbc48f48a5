#include "replayer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "sync/fabric.h"

namespace gradpress::cli {

namespace {

using Gradients = std::vector<std::vector<float>>;
using GradientViews = std::vector<std::span<const float>>;
using Runtimes = std::vector<std::unique_ptr<engine::Runtime>>;

double us(Time time) { return std::chrono::duration<double, std::micro>(time).count(); }
Time from_us(double time) {
  return std::chrono::duration_cast<Time>(std::chrono::duration<double, std::micro>(time));
}

/// Sleeps, so that the CPU is free, to within the timer's slack.
void sleep_until(Time due) {
  const Time now = steady_clock().now();
  if (due > now) std::this_thread::sleep_for(due - now);
}

/// Student's t with three degrees of freedom: few large values carry most of the norm, as in real
/// gradients.
Gradients heavy_tailed(const plan::Trace& trace, unsigned rank) {
  Gradients gradients;
  std::minstd_rand random(rank + 1);
  std::student_t_distribution<float> tails(3.0F);
  // Drawing is slow: a block of numbers is reused, shifted.
  constexpr std::size_t kBlock = 65521;
  std::vector<float> block(kBlock);
  for (float& value : block) value = 1e-3F * std::clamp(tails(random), -1e6F, 1e6F);
  std::size_t next = 0;
  for (const plan::Tensor& tensor : trace.tensors) {
    std::vector<float>& gradient = gradients.emplace_back(tensor.elements);
    for (float& value : gradient) {
      value = block[next];
      next = next + 1 == kBlock ? 0 : next + 1;
    }
    next = random() % kBlock;
  }
  return gradients;
}

/// The slowest rank's value.
Result<double> slowest(Group& world, double mine) {
  const auto own = static_cast<float>(mine);
  std::vector<float> all(world.size());
  const Status status = world.run({.kind = CollectiveKind::kAllGather,
                                   .type = DataType::kFloat32,
                                   .in = std::as_bytes(std::span(&own, 1)),
                                   .out = std::as_writable_bytes(std::span(all)),
                                   .tensor = "step time"});
  if (!status) return tl::unexpected(status);
  return *std::ranges::max_element(all);
}

class Player {
 public:
  Player(sync::Fabric& fabric, const plan::Trace& trace, const Runtimes& runtimes,
         Gradients& gradients, std::span<const GradientViews> recorded)
      : fabric_(fabric),
        trace_(trace),
        runtimes_(runtimes),
        gradients_(gradients),
        sources_(recorded.begin(), recorded.end()) {
    if (!sources_.empty()) return;
    own_ = heavy_tailed(trace, fabric.rank());
    sources_.emplace_back(own_.begin(), own_.end());
  }

  struct Step {
    unsigned turn = 0;  ///< steps before it that ended well, modulo 2
    Time began{0};
    double us = 0.0;
    engine::StepReport report = {};
    std::vector<plan::Span> spans = {};
  };

  Result<Step> play(std::uint64_t number) {
    // The last step left its means in them. An accelerator writes gradients without a CPU: here
    // that is done before the step's time begins.
    const GradientViews& source = sources_[(number + fabric_.rank()) % sources_.size()];
    for (std::size_t i = 0; i < source.size(); ++i) {
      std::ranges::copy(source[i], gradients_[i].begin());
    }
    Group& world = fabric_.group(plan::Phase::kFlat);
    if (Status status = world.run({.kind = CollectiveKind::kBarrier}); !status) {
      return tl::unexpected(status);
    }
    const Time began = steady_clock().now();
    Step step{.turn = turn_, .began = began};
    engine::Runtime& runtime = *runtimes_[turn_ % runtimes_.size()];
    if (Status status = runtime.begin(number); !status) return tl::unexpected(status);
    Time due = began + from_us(trace_.forward_us);
    for (std::uint32_t i = 0; i < trace_.tensors.size(); ++i) {
      const Time start = due;
      due += from_us(trace_.tensors[i].ready_gap_us);
      sleep_until(due);
      step.spans.push_back({.lane = plan::Lane::kDevice,
                            .kind = plan::SpanKind::kBackward,
                            .message = i,
                            .tensor = i,
                            .runnable_us = us(start - began),
                            .start_us = us(start - began),
                            .end_us = us(due - began)});
      const Time handed = steady_clock().now();
      if (Status status = runtime.ready(i, gradients_[i]); !status) return tl::unexpected(status);
      due += steady_clock().now() - handed;
    }
    auto report = runtime.wait();
    if (!report) return tl::unexpected(report.error());
    const auto longest = slowest(world, us(steady_clock().now() - began));
    if (!longest) return tl::unexpected(longest.error());
    step.us = *longest;
    step.report = *report;
    // Factors that met NaN are sent again, by the same program.
    if (report->outcome == sync::Outcome::kDone) turn_ = 1 - turn_;
    step.spans.insert(step.spans.end(), report->spans.begin(), report->spans.end());
    return step;
  }

 private:
  sync::Fabric& fabric_;
  const plan::Trace& trace_;
  const Runtimes& runtimes_;
  Gradients& gradients_;
  Gradients own_;
  std::vector<GradientViews> sources_;  ///< by step, going round
  unsigned turn_ = 0;
};

/// What every rank gives of its own, in rank order; lengths may differ.
Result<std::vector<std::vector<plan::Span>>> all_spans(Group& world,
                                                       std::span<const plan::Span> mine) {
  static_assert(std::is_trivially_copyable_v<plan::Span>);
  const std::size_t own_bytes = mine.size_bytes();
  std::vector<std::size_t> bytes(world.size());
  Status status = world.run({.kind = CollectiveKind::kAllGather,
                             .in = std::as_bytes(std::span(&own_bytes, 1)),
                             .out = std::as_writable_bytes(std::span(bytes)),
                             .tensor = "numbers of spans"});
  if (!status) return tl::unexpected(status);
  std::vector<plan::Span> all(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}) /
                              sizeof(plan::Span));
  status = world.run({.kind = CollectiveKind::kAllGather,
                      .in = std::as_bytes(mine),
                      .out = std::as_writable_bytes(std::span(all)),
                      .counts = bytes,
                      .tensor = "spans"});
  if (!status) return tl::unexpected(status);
  std::vector<std::vector<plan::Span>> by_rank;
  std::size_t next = 0;
  for (const std::size_t size : bytes) {
    const auto part = std::span(all).subspan(next, size / sizeof(plan::Span));
    by_rank.emplace_back(part.begin(), part.end());
    next += part.size();
  }
  return by_rank;
}

/// All ranks' parts of one step, on one clock.
Result<std::vector<RankStep>> meet(Group& world, const Player::Step& step) {
  const auto offsets = clock_offsets(world, steady_clock());
  if (!offsets) return tl::unexpected(offsets.error());
  const double own_us = us(step.began);
  std::vector<double> began_us(world.size());
  const Status status = world.run({.kind = CollectiveKind::kAllGather,
                                   .in = std::as_bytes(std::span(&own_us, 1)),
                                   .out = std::as_writable_bytes(std::span(began_us)),
                                   .tensor = "beginnings"});
  if (!status) return tl::unexpected(status);
  auto spans = all_spans(world, step.spans);
  if (!spans) return tl::unexpected(spans.error());
  std::vector<RankStep> ranks;
  for (std::size_t rank = 0; rank < began_us.size(); ++rank) {
    ranks.push_back({.began_us = began_us[rank] - (*offsets)[rank].us - began_us.front(),
                     .clock = (*offsets)[rank],
                     .spans = std::move((*spans)[rank])});
  }
  return ranks;
}

/// The mean of the last step of each kind.
SentBytes mean_of(std::span<const Player::Step> steps, SentBytes engine::StepReport::*bytes,
                  bool alternates) {
  const SentBytes last = steps.back().report.*bytes;
  const auto other = std::ranges::find_if(steps.rbegin(), steps.rend(), [&](const auto& step) {
    return step.turn != steps.back().turn;
  });
  if (!alternates || other == steps.rend()) return last;
  const SentBytes before = other->report.*bytes;
  return {.intra = (last.intra + before.intra) / 2, .inter = (last.inter + before.inter) / 2};
}

Result<Replay> play_all(sync::Fabric& fabric, const plan::Trace& trace, const Runtimes& runtimes,
                        Gradients& gradients, const ReplayOptions& options) {
  Player player(fabric, trace, runtimes, gradients, options.gradients);
  Replay replay;
  std::vector<Player::Step> steps;
  std::vector<double> exposed;
  for (unsigned i = 0; i < options.warmup + options.steps; ++i) {
    auto step = player.play(i);
    if (!step) return tl::unexpected(step.error());
    if (options.progress && fabric.rank() == 0) options.progress(i, step->us);
    if (i < options.warmup) continue;
    replay.step_us.push_back(step->us);
    replay.kinds.push_back(options.alternates ? step->turn : 0);
    exposed.push_back(step->report.exposed_us);
    steps.push_back(std::move(*step));
  }
  replay.sent = mean_of(steps, &engine::StepReport::sent, options.alternates);
  replay.promised = mean_of(steps, &engine::StepReport::promised, options.alternates);
  std::ranges::sort(exposed);
  replay.exposed_us = exposed[exposed.size() / 2];
  const auto is_second = [](const Player::Step& step) { return step.turn != 0; };
  if (options.alternates && !std::ranges::all_of(steps, is_second)) {
    std::erase_if(steps, is_second);
  }
  if (options.alternates) replay.shown = steps.front().turn;
  // Stable: times are the same on all ranks, and so is then the step.
  std::ranges::stable_sort(steps, {}, &Player::Step::us);
  auto ranks = meet(fabric.group(plan::Phase::kFlat), steps[steps.size() / 2]);
  if (!ranks) return tl::unexpected(ranks.error());
  replay.ranks = std::move(*ranks);
  return replay;
}

}  // namespace

Result<Replay> replay(std::unique_ptr<Group> end, const comm::Topology& topology,
                      const plan::Trace& trace, const engine::Programs& programs,
                      const ReplayOptions& options) {
  Gradients gradients;
  for (const plan::Tensor& tensor : trace.tensors) gradients.emplace_back(tensor.elements);
  auto fabric = sync::Fabric::make(std::move(end), topology);
  if (!fabric) return tl::unexpected(fabric.error());
  engine::RuntimeShared shared;
  Runtimes runtimes;
  for (const engine::Program* program :
       {&programs.first, programs.second ? &*programs.second : nullptr}) {
    if (program == nullptr) continue;
    auto made = engine::Runtime::make(*program, *fabric, options.runtime, steady_clock(), &shared);
    if (!made) return tl::unexpected(made.error());
    runtimes.push_back(std::move(*made));
  }
  shared.reserve();
  auto result = play_all(*fabric, trace, runtimes, gradients, options);
  // First the groups, then the buffers they may still write to after a failure.
  std::vector<std::vector<std::unique_ptr<sync::Message>>> messages;
  for (const auto& runtime : runtimes) messages.push_back(runtime->dissolve());
  const sync::Fabric last = std::move(*fabric);
  return result;
}

}  // namespace gradpress::cli
