// A timeline as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.
#pragma once

#include "base/json.h"
#include "plan/strategy.h"
#include "plan/timeline.h"

namespace gradpress::cli {

/// pid 0 is the one worker that stands for all; a tid per lane; times in microseconds.
Json perfetto_json(const plan::Setting& setting, const plan::Strategy& strategy,
                   const plan::Timeline& timeline);

/// "Comp@device" or "backward": what a span does.
std::string span_action(const plan::Strategy& strategy, const plan::Span& span);

}  // namespace gradpress::cli
