#include "comm/blame.h"

#include <algorithm>

#include "comm/store/wire.h"

namespace gradpress::comm {

namespace {

using store::Reader;
using store::Writer;

template <class... Parts>
std::string joined(const Parts&... parts) {
  std::string text;
  (detail::append(text, parts), ...);
  return text;
}

std::optional<Verdict> lost_member(const Case& one) {
  for (unsigned rank = 0; rank < one.members.size(); ++rank) {
    const Witness& witness = one.witnesses[rank];
    if (rank == one.rank) continue;
    // What it ended, it has done its part in: its last messages may still be under way.
    if (witness.gone && witness.calls.ended < one.call) {
      return Verdict{.call = one.call,
                     .blamed = one.members[rank],
                     .text = joined("rank ", one.members[rank], " is lost: its process has ended")};
    }
    if (witness.left && *witness.left < one.call) {
      return Verdict{.call = one.call,
                     .blamed = one.members[rank],
                     .text = joined("rank ", one.members[rank], " has left the group")};
    }
  }
  return std::nullopt;
}

std::optional<Verdict> disagreement(const Case& one) {
  for (unsigned a = 0; a < one.members.size(); ++a) {
    const std::optional<Report>& first = one.witnesses[a].report;
    if (!first) continue;
    for (unsigned b = a + 1; b < one.members.size(); ++b) {
      const std::optional<Report>& second = one.witnesses[b].report;
      if (!second || second->call != first->call) continue;
      if (agree(first->view, a, second->view, b)) continue;
      return Verdict{.code = Code::kInvalidArgument,
                     .call = first->call,
                     .blamed = one.members[b],
                     .text = joined("ranks disagree on call ", first->call, ": rank ",
                                    one.members[a], " runs ", to_text(first->view, b), "; rank ",
                                    one.members[b], " runs ", to_text(second->view, a))};
    }
  }
  return std::nullopt;
}

/// The rank at the end of the chain of waits that begins with `peer`.
unsigned end_of_chain(const Case& one, unsigned peer) {
  unsigned last = peer;
  for (std::size_t i = 0; i < one.members.size(); ++i) {
    const std::optional<Report>& report = one.witnesses[last].report;
    if (!report || last == one.rank) break;
    last = report->peer;
  }
  // A circle of waits has no end: then the peer itself is all there is to say.
  return one.witnesses[last].report || last == one.rank ? peer : last;
}

Verdict silence(const Case& one) {
  const unsigned peer = *one.peer;
  unsigned last = end_of_chain(one, peer);
  bool stopped = false;
  for (unsigned rank = 0; rank < one.members.size(); ++rank) {
    const Time still = one.witnesses[rank].still;
    if (rank == one.rank || still < kStill) continue;
    if (stopped && still <= one.witnesses[last].still) continue;
    last = rank;
    stopped = true;
  }
  const Witness& witness = one.witnesses[last];
  std::string text =
      joined("rank ", one.members[last], " has not answered for ", one.timeout.count(), " ms");
  const auto add = [&text](const auto&... parts) { (detail::append(text, parts), ...); };
  if (last != peer && !stopped) add(" (rank ", one.members[peer], " waits for it, too)");
  if (stopped) {
    add("; its process gives no sign: stopped, out of CPU time, or cut off from the network");
    return {.call = one.call, .blamed = one.members[last], .text = std::move(text)};
  }
  // A beat has to be missed for kStill before it tells anything.
  if (one.waited >= kStill) add("; its process is alive");
  if (witness.calls.begun < one.call) {
    add("; it has begun ", witness.calls.begun, " calls, this is call ", one.call);
  }
  add(kSilenceAdvice);
  return {.call = one.call, .blamed = one.members[last], .text = std::move(text)};
}

}  // namespace

std::string encode(const Report& report) {
  Writer writer;
  writer.u64(report.call).u32(report.peer);
  writer.u8(static_cast<std::uint8_t>(report.view.kind));
  writer.u8(static_cast<std::uint8_t>(report.view.type)).u32(report.view.root);
  writer.text(report.view.tensor).u32(static_cast<std::uint32_t>(report.view.counts.size()));
  for (const std::size_t count : report.view.counts) writer.u64(count);
  return writer.bytes();
}

std::optional<Report> decode_report(std::string_view bytes, unsigned size) {
  Reader reader(bytes);
  Report report{.call = reader.u64(), .peer = reader.u32()};
  const std::uint8_t kind = reader.u8();
  const std::uint8_t type = reader.u8();
  report.view.root = reader.u32();
  report.view.tensor = reader.text();
  const std::uint32_t counts = reader.u32();
  const bool all_to_all = kind == static_cast<std::uint8_t>(CollectiveKind::kAllToAll);
  if (!reader.ok() || kind > static_cast<std::uint8_t>(CollectiveKind::kBarrier) ||
      type > static_cast<std::uint8_t>(DataType::kBfloat16) || report.peer >= size ||
      counts > 2 * size || (all_to_all && counts != 2 * size)) {
    return std::nullopt;
  }
  report.view.kind = static_cast<CollectiveKind>(kind);
  report.view.type = static_cast<DataType>(type);
  for (std::uint32_t i = 0; i < counts; ++i) report.view.counts.push_back(reader.u64());
  return reader.ok() && reader.at_end() ? std::optional(std::move(report)) : std::nullopt;
}

std::string encode(const Verdict& verdict) {
  return Writer()
      .u8(static_cast<std::uint8_t>(verdict.code))
      .u64(verdict.call)
      .u32(verdict.blamed)
      .text(verdict.text)
      .bytes();
}

std::optional<Verdict> decode_verdict(std::string_view bytes) {
  Reader reader(bytes);
  const std::uint8_t code = reader.u8();
  Verdict verdict{.call = reader.u64(), .blamed = reader.u32()};
  verdict.text = reader.text();
  if (!reader.ok() || !reader.at_end()) return std::nullopt;
  verdict.code = code == static_cast<std::uint8_t>(Code::kInvalidArgument) ? Code::kInvalidArgument
                                                                           : Code::kPeerLost;
  return verdict;
}

std::optional<Verdict> judge(const Case& one) {
  if (auto lost = lost_member(one)) return lost;
  if (auto differ = disagreement(one)) return differ;
  if (one.peer && one.waited >= one.timeout) return silence(one);
  if (one.broken && one.broken->since >= kMystery) {
    const unsigned peer = one.members[one.broken->peer];
    return Verdict{.call = one.call,
                   .blamed = peer,
                   .text = joined("the connection to rank ", peer, " broke: ", one.broken->why)};
  }
  return std::nullopt;
}

}  // namespace gradpress::comm
