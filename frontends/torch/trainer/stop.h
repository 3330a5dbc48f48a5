// Ctrl-C: the first asks for an end between two steps, the second ends the process at once.
#pragma once

#include <atomic>

namespace gradpress::trainer {

/// From now on an interrupt or a request to terminate sets the flag.
const std::atomic<bool>& stop_on_interrupt();

}  // namespace gradpress::trainer
