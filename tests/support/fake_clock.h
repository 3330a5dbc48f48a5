// A clock that stands still until someone waits: then it jumps to the end of the wait.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace gradpress::test {

/// For tests in one thread, where a wait can only end by its time.
class FakeClock final : public Clock {
 public:
  Time now() const override { return now_; }
  void wait_until(CondVar&, Mutex&, Time time) override { now_ = std::max(now_, time + lateness_); }
  void advance(Time by) { now_ += by; }
  /// From now on every wait ends this much too late.
  void wake_late(Time by) { lateness_ = by; }

 private:
  Time now_{0};
  Time lateness_{0};
};

}  // namespace gradpress::test
