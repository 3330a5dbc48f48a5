#include "perfetto.h"

#include "plan/option.h"

namespace gradpress::cli {

std::string span_action(const plan::Strategy& strategy, const plan::Span& span) {
  if (span.kind == plan::SpanKind::kBackward) return "backward";
  return plan::to_text(strategy.choices[span.tensor].option.actions()[span.action]);
}

Json perfetto_json(const plan::Setting& setting, const plan::Strategy& strategy,
                   const plan::Timeline& timeline) {
  Json events = Json::array();
  events.push_back({{"ph", "M"},
                    {"pid", 0},
                    {"name", "process_name"},
                    {"args", {{"name", "worker (all do the same)"}}}});
  for (const plan::Lane lane : plan::kAllLanes) {
    events.push_back({{"ph", "M"},
                      {"pid", 0},
                      {"tid", static_cast<int>(lane)},
                      {"name", "thread_name"},
                      {"args", {{"name", plan::to_text(lane)}}}});
  }
  if (timeline.forward_us > 0.0) {
    events.push_back({{"ph", "X"},
                      {"pid", 0},
                      {"tid", 0},
                      {"name", "forward"},
                      {"ts", 0.0},
                      {"dur", timeline.forward_us}});
  }
  for (const plan::Span& span : timeline.spans) {
    const plan::Tensor& tensor = setting.trace.tensors[span.tensor];
    events.push_back({{"ph", "X"},
                      {"pid", 0},
                      {"tid", static_cast<int>(span.lane)},
                      {"name", tensor.name},
                      {"cat", span_action(strategy, span)},
                      {"ts", timeline.forward_us + span.start_us},
                      {"dur", span.end_us - span.start_us},
                      {"args",
                       {{"action", span_action(strategy, span)},
                        {"bucket", span.message},
                        {"elements", tensor.elements},
                        {"runnable_us", timeline.forward_us + span.runnable_us}}}});
  }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

}  // namespace gradpress::cli
