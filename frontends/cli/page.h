// HTML pages of the planner: one file each, no network, readable in any browser.
#pragma once

#include <gradpress/status.h>

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "plan/span.h"

namespace gradpress::cli {

/// A timeline with zoom and hover, the tensors with their options, and a comparison.
/// `data`: {title, verdict, forward_us, lanes: [name], spans: [[lane, kind, start, end, tensor,
/// action]], tensors: [...], compare: [{name, iteration_us}]}.
std::string plan_page(const Json& data);
/// The word for a span's kind in those.
const char* span_kind(plan::SpanKind kind);

/// Lines over a swept quantity. `data`: {title, x: name, log, points: [{x, values: {name: us},
/// best}]}.
std::string sweep_page(const Json& data);

/// Which strategy is fastest where, over two swept quantities: coloured cells, hover for all times.
/// `data`: {title, x, xs, y, ys, points: [{x, y, values: {name: us}, best}], row by row}.
std::string regions_page(const Json& data);

/// `html` with `const data=…;` at the start of its first script.
std::string with_data(const std::string& html, const Json& data);

Status write_text(const std::string& path, const std::string& text);

}  // namespace gradpress::cli
