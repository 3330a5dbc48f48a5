// What an iteration of a strategy looks like: spans on lanes, and what they add up to.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plan/simulator.h"
#include "plan/span.h"
#include "plan/strategy.h"

namespace gradpress::plan {

/// An idle interval of a lane between its first and its last task.
struct Bubble {
  Lane lane;
  double start_us;
  double end_us;
};

/// All times from the start of backward; iteration_us includes forward.
/// iteration = forward + backward + exposed_comm + exposed_codec: every instant after forward is
/// backward's, or else communication's, or else the codec's.
struct Timeline {
  std::vector<Span> spans;  ///< in the order in which they end
  double forward_us = 0.0;
  double backward_us = 0.0;  ///< backward alone, without what delays it
  double iteration_us = 0.0;
  double exposed_comm_us = 0.0;   ///< a link is busy and backward is not running
  double exposed_codec_us = 0.0;  ///< codec work runs, and neither backward nor a link
  Loads busy_us{};
  std::vector<Bubble> bubbles;               ///< of intra and inter, by start
  std::vector<std::uint32_t> critical_path;  ///< indices of spans, the first one first
};

/// Indices of the spans that decide the end, the first one first: from the last task backwards, a
/// task that started when it became runnable waited for the one that released it, any other for the
/// one before it on its lane. Requires: spans in the order in which they end.
std::vector<std::uint32_t> critical_path(std::span<const Span> spans);

/// The prepared input of a simulation: costs of every message of a strategy.
class PricedStrategy {
 public:
  /// `round`: which of acpsgd's two steps. Requires: a strategy that fits (why_not), with costs at
  /// every place it uses, members of a bucket with equal choices.
  PricedStrategy(const Setting& setting, const Strategy& strategy, unsigned round = 0);
  Work work() const;

 private:
  std::vector<Chain> chains_;
  std::vector<const Chain*> pointers_;
  std::vector<Lead> leads_;
  Loads loads_{};
};

/// The timeline of one step. `round` is acpsgd's step of two.
Timeline predict(const Setting& setting, const Strategy& strategy, unsigned round = 0);

/// One step's iteration alone.
double predict_step_us(const Setting& setting, const Strategy& strategy, unsigned round);
/// The iteration alone: the mean over acpsgd's two steps where it is used.
double predict_us(const Setting& setting, const Strategy& strategy);
/// Whether any tensor takes acpsgd, so that two steps alternate.
bool alternates(const Setting& setting, const Strategy& strategy);

/// No strategy is faster: compression free and instant, each link's least load after each tensor's
/// readiness. `least_us[tensor]` holds a tensor's least time on each link (only kIntra and kInter
/// are used), `once_us` what each link takes once whatever shares a message.
double bound_us(const Trace& trace, std::span<const Loads> least_us, const Loads& once_us = {});

}  // namespace gradpress::plan
