#include "perfetto.h"

#include <utility>

#include "plan/option.h"

namespace gradpress::cli {

namespace {

void name_lanes(const TraceProcess& process, int place, Json& events) {
  const auto meta = [&](const char* what, const Json& arguments) {
    events.push_back({{"ph", "M"}, {"pid", process.pid}, {"name", what}, {"args", arguments}});
  };
  meta("process_name", {{"name", process.name}});
  meta("process_sort_index", {{"sort_index", place}});
  for (const plan::Lane lane : plan::kAllLanes) {
    events.push_back({{"ph", "M"},
                      {"pid", process.pid},
                      {"tid", static_cast<int>(lane)},
                      {"name", "thread_name"},
                      {"args", {{"name", plan::to_text(lane)}}}});
  }
}

}  // namespace

std::string span_action(const plan::Strategy& strategy, const plan::Span& span) {
  if (span.kind == plan::SpanKind::kBackward) return "backward";
  return plan::to_text(strategy.choices[span.tensor].option.actions()[span.action]);
}

Json perfetto_json(std::span<const TraceProcess> processes,
                   const std::function<SpanLabel(const plan::Span&)>& label) {
  Json events = Json::array();
  int place = 0;
  for (const TraceProcess& process : processes) {
    name_lanes(process, place++, events);
    if (process.forward_us > 0.0) {
      events.push_back({{"ph", "X"},
                        {"pid", process.pid},
                        {"tid", static_cast<int>(plan::Lane::kDevice)},
                        {"name", "forward"},
                        {"ts", process.begin_us},
                        {"dur", process.forward_us}});
    }
    for (const plan::Span& span : process.spans) {
      const SpanLabel text = label(span);
      events.push_back({{"ph", "X"},
                        {"pid", process.pid},
                        {"tid", static_cast<int>(span.lane)},
                        {"name", text.tensor},
                        {"cat", text.action},
                        {"ts", process.spans_from_us + span.start_us},
                        {"dur", span.end_us - span.start_us},
                        {"args",
                         {{"action", text.action},
                          {"bucket", span.message},
                          {"elements", text.elements},
                          {"runnable_us", process.spans_from_us + span.runnable_us}}}});
    }
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

Json perfetto_json(const plan::Setting& setting, const plan::Strategy& strategy,
                   const plan::Timeline& timeline) {
  const TraceProcess worker{.name = "worker (all do the same)",
                            .forward_us = timeline.forward_us,
                            .spans_from_us = timeline.forward_us,
                            .spans = timeline.spans};
  return perfetto_json(std::span(&worker, 1), [&](const plan::Span& span) {
    const plan::Tensor& tensor = setting.trace.tensors[span.tensor];
    return SpanLabel{
        .tensor = tensor.name, .action = span_action(strategy, span), .elements = tensor.elements};
  });
}

}  // namespace gradpress::cli
