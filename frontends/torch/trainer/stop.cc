#include "stop.h"

#include <csignal>

namespace gradpress::trainer {

namespace {

std::atomic<bool> stopped{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes to it");

}  // namespace

const std::atomic<bool>& stop_on_interrupt() {
  struct sigaction action = {};
  action.sa_handler = [](int) { stopped.store(true); };
  // Once: the second does what it does by default.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return stopped;
}

}  // namespace gradpress::trainer
