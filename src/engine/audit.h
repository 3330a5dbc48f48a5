// Whether the bytes that a backend counted are those that the plan promised.
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/program.h"
#include "engine/runtime.h"

namespace gradpress::engine {

struct AuditedStep {
  std::uint64_t step = 0;
  std::string_view running;  ///< the codec, or "plan"
  std::string_view backend;
  const Program& program;  ///< of this step
  const StepReport& report;
};

/// Judges the steps of one engine, one after the other.
///
/// A step whose sum is off says little. So the audit then has messages counted one by one for two
/// steps, ACP-SGD's two kinds, and names the one that is furthest off. It warns once.
/// Threads: the engine's alone.
/// Cost:    a comparison of two sums a step while all is as promised.
class ByteAudit {
 public:
  /// `strict`: a step that is off is an error, and messages are always counted.
  explicit ByteAudit(bool strict) : strict_(strict) {}

  /// Whether the runtimes are to count messages in the next step.
  bool counts_messages() const { return strict_ || closely_ > 0; }
  /// Another program runs from the next step on.
  void start_over() { closely_ = 0; }

  /// A line for the log, or nothing.
  /// Errors: kInternal where a strict audit found a step off.
  Result<std::optional<std::string>> judge(const AuditedStep& step);

 private:
  std::string warn(std::string line);

  const bool strict_;
  bool warned_ = false;
  unsigned closely_ = 0;   ///< steps in which messages are still to be counted
  std::string suspicion_;  ///< what made it so
};

}  // namespace gradpress::engine
