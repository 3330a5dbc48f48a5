// Writing to a connection whose peer is gone must be an error, not the end of the process.
#pragma once

#include <csignal>

namespace gradpress::comm {

/// Blocks SIGPIPE in this thread, and in threads that it starts, for a scope. Gloo writes without
/// asking the system to keep the signal to itself; the process's own handling stays untouched.
class QuietPipe {
 public:
  QuietPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~QuietPipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    // One that came meanwhile waits for the mask to open: take it away first.
    const timespec at_once{};
    (void)sigtimedwait(&pipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  QuietPipe(const QuietPipe&) = delete;
  QuietPipe& operator=(const QuietPipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

}  // namespace gradpress::comm
