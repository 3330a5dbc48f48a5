// When a thread that was woken gets a core, where there are more threads than cores.
#pragma once

#include <cstdint>

namespace gradpress {

enum class Turns : std::uint8_t {
  /// Soon, from threads that compute for milliseconds on end, and for a short turn. Needs Linux
  /// 6.12 or later; nothing happens on others.
  kPrompt,
  /// When one is free or the running thread's turn is over.
  kPatient,
};

/// Holds for this thread, and for threads that it starts, for a scope. A hint: no right is needed,
/// a thread's share of the cores stays what it was, and who chose another policy keeps it.
class ThreadTurns {
 public:
  explicit ThreadTurns(Turns turns);
  ~ThreadTurns();
  ThreadTurns(const ThreadTurns&) = delete;
  ThreadTurns& operator=(const ThreadTurns&) = delete;

 private:
  std::uint64_t turn_ns_before_ = 0;
  bool changed_ = false;
};

}  // namespace gradpress
