#include "base/thread_turns.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gradpress {

namespace {

/// The kernel's sched_attr; its header cannot be read beside the C library's.
struct Attributes {
  std::uint32_t size = sizeof(Attributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;  ///< a turn's length
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};
static_assert(sizeof(Attributes) == 48);

constexpr std::uint64_t kTurnNs = 100'000;  // the shortest that Linux gives

bool get(Attributes& attributes) {
  return syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) == 0;
}
bool set(const Attributes& attributes) {
  return syscall(SYS_sched_setattr, 0, &attributes, 0) == 0;
}

}  // namespace

ThreadTurns::ThreadTurns(Turns turns) {
  Attributes attributes;
  if (!get(attributes) || attributes.policy != SCHED_OTHER) return;
  turn_ns_before_ = attributes.runtime_ns;
  if (turns == Turns::kPrompt) {
    attributes.runtime_ns = kTurnNs;
  } else {
    attributes.policy = SCHED_BATCH;
  }
  changed_ = set(attributes);
}

ThreadTurns::~ThreadTurns() {
  Attributes attributes;
  if (!changed_ || !get(attributes)) return;
  attributes.policy = SCHED_OTHER;
  attributes.runtime_ns = turn_ns_before_;
  (void)set(attributes);
}

}  // namespace gradpress
