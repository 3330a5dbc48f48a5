// Which instruction set the kernels run on: chosen at run time, and pinnable.
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradpress::kernels {

/// Names of the targets that were compiled in and that this CPU runs, best first: "AVX2", "SSE4", …
std::vector<std::string> supported_targets();

/// The target the next kernel call will take.
std::string active_target();

/// Makes every kernel of the process run on one target until destroyed, then restores the choice.
/// Threads: pin only while no other thread runs kernels (tests, benches, start-up).
class ScopedTarget {
 public:
  /// Errors: kInvalidArgument when the CPU or this build lacks the target; lists those there are.
  static Result<ScopedTarget> pin(std::string_view name);
  ~ScopedTarget();
  ScopedTarget(ScopedTarget&& other) noexcept;
  ScopedTarget(const ScopedTarget&) = delete;
  ScopedTarget& operator=(const ScopedTarget&) = delete;
  ScopedTarget& operator=(ScopedTarget&&) = delete;

 private:
  ScopedTarget() = default;
  bool owns_ = true;
};

}  // namespace gradpress::kernels
