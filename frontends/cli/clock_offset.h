// How far the clocks of a group's ranks are apart.
#pragma once

#include <gradpress/group.h>

#include <vector>

#include "base/clock.h"

namespace gradpress::cli {

/// A rank's clock minus rank 0's. The truth is within `error_us` of it.
struct ClockOffset {
  double us = 0.0;
  double error_us = 0.0;
};

/// By rank. Every rank calls it.
///
/// Nobody leaves a barrier before everybody has entered it: each barrier so bounds the difference
/// of two clocks from both sides, as a ping and its answer do, and the tightest bounds of all
/// barriers hold. Clocks that run at different speeds are not told apart: ask close to what is
/// compared. Cost:   `rounds` barriers and an all-gather. Errors: the group's.
Result<std::vector<ClockOffset>> clock_offsets(Group& world, Clock& clock, unsigned rounds = 32);

}  // namespace gradpress::cli
