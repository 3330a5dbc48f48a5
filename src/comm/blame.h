// Who is to blame when a wait fails, from what is known of every rank. Pure: no clock, no network.
#pragma once

#include <gradpress/status.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "comm/agreement.h"

namespace gradpress::comm {

/// Calls of one end of a group.
struct Calls {
  std::uint64_t begun = 0;
  std::uint64_t ended = 0;  ///< well
};

/// What a lane that waits is doing.
struct Report {
  std::uint64_t call = 0;  ///< from 1 on
  unsigned peer = 0;       ///< whom it waits for, in the group
  CallView view = {};
};
std::string encode(const Report& report);
/// Nothing when the bytes are no report on a group of `size`.
std::optional<Report> decode_report(std::string_view bytes, unsigned size);

/// Why a group failed. The first verdict on a group is every member's.
struct Verdict {
  Code code = Code::kPeerLost;
  std::uint64_t call = 0;  ///< calls before this one may yet end well
  unsigned blamed = 0;     ///< in the world
  std::string text = {};
};
std::string encode(const Verdict& verdict);
std::optional<Verdict> decode_verdict(std::string_view bytes);

/// What is known of one member.
struct Witness {
  bool gone = false;                       ///< its process ended without leaving
  std::optional<std::uint64_t> left = {};  ///< its end was destroyed after so many calls ended
  Time still{0};                           ///< how long its beat has not moved
  Calls calls = {};                        ///< by its last beat
  std::optional<Report> report = {};       ///< when it waits
};

struct BrokenLink {
  unsigned peer = 0;  ///< in the group
  std::string why = {};
  Time since{0};  ///< how long ago
};

/// One end's view of its group. Ranks are the group's unless called world ranks.
struct Case {
  std::span<const unsigned> members = {};  ///< world ranks
  unsigned rank = 0;
  std::uint64_t call = 0;             ///< the one this end is in
  std::optional<unsigned> peer = {};  ///< whom it waits for
  Time waited{0};
  std::chrono::milliseconds timeout{0};
  std::optional<BrokenLink> broken = {};
  std::vector<Witness> witnesses = {};  ///< by rank
};

/// A beat that stands still for this long has stopped.
inline constexpr std::chrono::milliseconds kStill{2000};
/// How long a broken connection may go unexplained.
inline constexpr std::chrono::milliseconds kMystery{2500};

/// Ends the error for a rank that is alive but silent: which setting governs it.
inline constexpr std::string_view kSilenceAdvice = "; raise timeout_s if it may be busy for longer";

/// The rules, in this order; nothing when it is too early to say:
///   a process that is gone, or an end that was destroyed before this call
///   two ranks that wait in the same call with views that differ
///   when the wait has lasted for its timeout: a rank whose beat stands still, else the end of the
///     chain of waits; in a circle the peer
///   when a connection broke and nothing explains it for kMystery: the peer
std::optional<Verdict> judge(const Case& one);

}  // namespace gradpress::comm
