#include "base/clock.h"

namespace gradpress {

namespace {

class SteadyClock final : public Clock {
 public:
  Time now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
  void wait_until(CondVar& changed, Mutex& mutex, Time time) override GRADPRESS_REQUIRES(mutex) {
    changed.wait_until(mutex, std::chrono::steady_clock::time_point(time));
  }
};

}  // namespace

Clock& steady_clock() {
  static SteadyClock clock;
  return clock;
}

}  // namespace gradpress
