#include "plan/timeline.h"

#include <algorithm>

#include "spec/facts.h"

namespace gradpress::plan {

namespace {

void add_loads(Loads& sum, const Chain& chain) {
  const Loads loads = loads_of(chain);
  for (std::size_t lane = 0; lane < kLanes; ++lane) sum[lane] += loads[lane];
}

/// Sweeps over the instants at which spans begin or end and says what nothing hides.
void add_exposure(Timeline& timeline) {
  enum Kind : std::size_t { kCompute, kLinks, kCodec };
  struct Edge {
    double us;
    Kind kind;
    int change;
  };
  std::vector<Edge> edges;
  edges.reserve(2 * timeline.spans.size());
  for (const Span& span : timeline.spans) {
    const Kind kind = span.kind == SpanKind::kBackward ? kCompute
                      : span.kind == SpanKind::kComm   ? kLinks
                                                       : kCodec;
    edges.push_back({span.start_us, kind, 1});
    edges.push_back({span.end_us, kind, -1});
  }
  std::ranges::sort(edges, {}, &Edge::us);
  std::array<int, 3> running{};
  double last = 0.0;
  for (const Edge& edge : edges) {
    const double us = edge.us - last;
    if (running[kCompute] == 0 && running[kLinks] > 0) {
      timeline.exposed_comm_us += us;
    } else if (running[kCompute] == 0 && running[kCodec] > 0) {
      timeline.exposed_codec_us += us;
    }
    running[edge.kind] += edge.change;
    last = edge.us;
  }
}

void add_bubbles(Timeline& timeline) {
  for (const Lane lane : {Lane::kIntra, Lane::kInter}) {
    double end = -1.0;
    for (const Span& span : timeline.spans) {
      if (span.lane != lane) continue;
      if (end >= 0.0 && span.start_us > end) timeline.bubbles.push_back({lane, end, span.start_us});
      end = span.end_us;
    }
  }
  std::ranges::sort(timeline.bubbles, {}, &Bubble::start_us);
}

}  // namespace

std::vector<std::uint32_t> critical_path(std::span<const Span> spans) {
  std::vector<std::uint32_t> path;
  if (spans.empty()) return path;
  std::vector<std::uint32_t> before_on_lane(spans.size(), 0);
  std::array<std::uint32_t, kLanes> last{};
  for (std::uint32_t i = 0; i < spans.size(); ++i) {
    auto& previous = last[static_cast<std::size_t>(spans[i].lane)];
    before_on_lane[i] = previous;
    previous = i + 1;
  }
  auto at = static_cast<std::uint32_t>(std::ranges::max_element(spans, {}, &Span::end_us) -
                                       spans.begin());
  for (;;) {
    path.push_back(at);
    const Span& span = spans[at];
    if (span.start_us <= 0.0) break;
    const bool waited = span.start_us > span.runnable_us;
    std::uint32_t next = 0;  // index + 1
    if (!waited && span.kind != SpanKind::kBackward) {
      // What released it ended at that very instant and belongs to the same message, or is the
      // backward (of this tensor or, with gaps of zero, of the one that ended with it).
      for (std::uint32_t i = at; i-- > 0 && next == 0;) {
        if (spans[i].end_us < span.runnable_us) break;
        if (spans[i].end_us > span.runnable_us) continue;
        const bool same = spans[i].kind != SpanKind::kBackward && spans[i].message == span.message;
        if (same || spans[i].kind == SpanKind::kBackward) next = i + 1;
      }
    }
    if (next == 0) next = before_on_lane[at];
    if (next == 0) break;
    at = next - 1;
  }
  std::ranges::reverse(path);
  return path;
}

PricedStrategy::PricedStrategy(const Setting& setting, const Strategy& strategy, unsigned round) {
  const auto& tensors = setting.trace.tensors;
  const Buckets& buckets = strategy.of_round(round);
  const CommCosts comm(setting.cluster);
  const bool fused = buckets.count != tensors.size();
  chains_.resize(buckets.count);
  if (fused) leads_.resize(tensors.size());
  std::vector<std::uint32_t> members(buckets.count, 0);
  for (const std::uint32_t bucket : buckets.of_tensor) ++members[bucket];
  // Per message, time by action: bytes and codec times add up over members, latencies do not.
  std::vector<std::array<double, Option::kMaxActions>> sums(buckets.count);
  std::vector<std::array<Lane, Option::kMaxActions>> lanes(buckets.count);
  std::vector<bool> begun(buckets.count, false);
  std::vector<const Choice*> choice_of(buckets.count, nullptr);
  std::vector<CodecCurves> curves;
  for (const codec::Spec& spec : setting.codecs) curves.push_back(curves_of(setting.cluster, spec));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Choice& choice = strategy.choices[i];
    const std::uint32_t bucket = buckets.of_tensor[i];
    const codec::Spec* const spec =
        choice.option.is_raw() ? nullptr : &setting.codecs[choice.codec];
    TensorCosts costs(comm, spec == nullptr ? CodecCurves{} : curves[choice.codec], spec,
                      tensors[i].shape, round);
    TensorCosts::Held held = costs.start();
    std::size_t index = 0;
    choice_of[bucket] = &choice;
    for (const Action& action : choice.option.actions()) {
      const bool is_comm = action.kind == ActionKind::kComm;
      const bool rooted = held.rooted;
      const TensorCosts::Price price = costs.apply(action, held);
      double us = price.us;
      if (is_comm && begun[bucket])
        us -= comm.line(action.phase, action.collective, rooted).fixed_us;
      if (members[bucket] > 1 && index == 0 && action.kind == ActionKind::kComp) {
        leads_[i] = {price.lane, us};
        loads_[static_cast<std::size_t>(price.lane)] += us;
        us = 0.0;
      }
      sums[bucket][index] += us;
      lanes[bucket][index++] = price.lane;
    }
    begun[bucket] = true;
  }
  for (std::uint32_t bucket = 0; bucket < buckets.count; ++bucket) {
    if (choice_of[bucket] == nullptr) continue;
    for (std::size_t i = 0; i < choice_of[bucket]->option.actions().size(); ++i) {
      chains_[bucket].add(lanes[bucket][i], sums[bucket][i], i);
    }
    add_loads(loads_, chains_[bucket]);
  }
  for (const Chain& chain : chains_) pointers_.push_back(&chain);
}

Work PricedStrategy::work() const {
  return {.chains = pointers_, .leads = leads_, .loads = loads_};
}

Timeline predict(const Setting& setting, const Strategy& strategy, unsigned round) {
  const PricedStrategy priced(setting, strategy, round);
  Simulator simulator(setting.trace, strategy.of_round(round));
  Timeline timeline;
  (void)simulator.run(priced.work());
  timeline.spans.assign(simulator.spans().begin(), simulator.spans().end());
  for (Span& span : timeline.spans) {
    timeline.busy_us[static_cast<std::size_t>(span.lane)] += span.end_us - span.start_us;
    if (span.kind != SpanKind::kComm) continue;
    const ActionKind kind = strategy.choices[span.tensor].option.actions()[span.action].kind;
    if (kind == ActionKind::kComp) span.kind = SpanKind::kEncode;
    if (kind == ActionKind::kDecomp) span.kind = SpanKind::kDecode;
  }
  timeline.forward_us = setting.trace.forward_us;
  timeline.backward_us = simulator.backward_us();
  timeline.iteration_us =
      timeline.forward_us + (timeline.spans.empty() ? 0.0 : timeline.spans.back().end_us);
  add_exposure(timeline);
  add_bubbles(timeline);
  timeline.critical_path = critical_path(timeline.spans);
  return timeline;
}

bool alternates(const Setting& setting, const Strategy& strategy) {
  return std::ranges::any_of(strategy.choices, [&](const Choice& choice) {
    return !choice.option.is_raw() && codec::facts_of(setting.codecs[choice.codec]).alternates();
  });
}

double predict_step_us(const Setting& setting, const Strategy& strategy, unsigned round) {
  const PricedStrategy priced(setting, strategy, round);
  Simulator simulator(setting.trace, strategy.of_round(round));
  return setting.trace.forward_us + simulator.run(priced.work());
}

double predict_us(const Setting& setting, const Strategy& strategy) {
  const double first = predict_step_us(setting, strategy, 0);
  if (!alternates(setting, strategy)) return first;
  return 0.5 * (first + predict_step_us(setting, strategy, 1));
}

double bound_us(const Trace& trace, std::span<const Loads> least_us, const Loads& once_us) {
  double ready = trace.backward_us();
  double bound = ready;
  for (const Lane lane : {Lane::kIntra, Lane::kInter}) {
    double later = once_us[static_cast<std::size_t>(lane)];
    ready = trace.backward_us();
    for (std::size_t i = trace.tensors.size(); i-- > 0;) {
      later += least_us[i][static_cast<std::size_t>(lane)];
      bound = std::max(bound, ready + later);
      ready -= trace.tensors[i].ready_gap_us;
    }
  }
  return trace.forward_us + bound;
}

}  // namespace gradpress::plan
