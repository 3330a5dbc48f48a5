// Timelines as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/json.h"
#include "plan/strategy.h"
#include "plan/timeline.h"

namespace gradpress::cli {

/// One worker's timeline: a process of the trace, with a thread per lane.
struct TraceProcess {
  int pid = 0;
  std::string name = {};
  double begin_us = 0.0;  ///< of the step, on the trace's clock
  double forward_us = 0.0;
  double spans_from_us = 0.0;  ///< where the spans' times count from, on the trace's clock
  std::span<const plan::Span> spans = {};
};

/// What a trace says of a span beside its times.
struct SpanLabel {
  std::string tensor = {};
  std::string action = {};  ///< "Comp@device" or "backward"
  std::uint64_t elements = 0;
};

/// Times in microseconds; processes stand in the order given.
Json perfetto_json(std::span<const TraceProcess> processes,
                   const std::function<SpanLabel(const plan::Span&)>& label);

/// A plan's timeline alone: one worker stands for all.
Json perfetto_json(const plan::Setting& setting, const plan::Strategy& strategy,
                   const plan::Timeline& timeline);

/// "Comp@device" or "backward": what a span does.
std::string span_action(const plan::Strategy& strategy, const plan::Span& span);

}  // namespace gradpress::cli
