#include "clock_offset.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>

namespace gradpress::cli {

namespace {

struct Passage {
  double entered_us = 0.0;
  double left_us = 0.0;
};

double us(Time time) { return std::chrono::duration<double, std::micro>(time).count(); }

/// `theirs` minus `ours`: neither side left before the other had entered.
ClockOffset offset_of(std::span<const Passage> theirs, std::span<const Passage> ours) {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    least = std::max(least, theirs[i].entered_us - ours[i].left_us);
    most = std::min(most, theirs[i].left_us - ours[i].entered_us);
  }
  return {.us = 0.5 * (least + most), .error_us = std::max(0.0, 0.5 * (most - least))};
}

}  // namespace

Result<std::vector<ClockOffset>> clock_offsets(Group& world, Clock& clock, unsigned rounds) {
  std::vector<Passage> own(rounds);
  for (Passage& passage : own) {
    passage.entered_us = us(clock.now());
    if (Status status = world.run({.kind = CollectiveKind::kBarrier}); !status) {
      return tl::unexpected(status);
    }
    passage.left_us = us(clock.now());
  }
  std::vector<Passage> all(own.size() * world.size());
  const Status status = world.run({.kind = CollectiveKind::kAllGather,
                                   .in = std::as_bytes(std::span(own)),
                                   .out = std::as_writable_bytes(std::span(all)),
                                   .tensor = "clocks"});
  if (!status) return tl::unexpected(status);
  std::vector<ClockOffset> offsets(world.size());
  for (unsigned rank = 1; rank < world.size(); ++rank) {
    offsets[rank] =
        offset_of(std::span(all).subspan(rank * own.size(), rounds), std::span(all).first(rounds));
  }
  return offsets;
}

}  // namespace gradpress::cli
