#include "comm/local/board.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "comm/blame.h"

namespace gradpress::comm {

namespace {

/// How long a wait for a copy under way sleeps at most before it looks again.
constexpr Time kCopyLook = std::chrono::seconds(1);

}  // namespace

Board::Board(std::shared_ptr<Network> network, Clock& clock, std::vector<unsigned> members)
    : network_(std::move(network)),
      clock_(clock),
      world_ranks_(std::move(members)),
      members_(world_ranks_.size()),
      channels_(world_ranks_.size() * world_ranks_.size()) {}

Status Board::begin(unsigned rank, const Collective& call) {
  const MutexLock lock(mutex_);
  const std::uint64_t number = members_[rank].calls++;
  if (failed(rank)) return failure_;
  const std::size_t index = number - first_call_;
  if (index == calls_.size()) {
    Call& fresh = calls_.push_back();
    fresh.views.resize(size());
    fresh.begun.assign(size(), false);
    fresh.count = 0;
  }
  Call& entry = calls_[index];
  view_of(call, rank, size(), entry.views[rank]);
  for (unsigned other = 0; other < size(); ++other) {
    if (!entry.begun[other]) continue;
    if (!agree(entry.views[other], other, entry.views[rank], rank)) {
      return fail_from(
          number + 1,
          Status::error(Code::kInvalidArgument, "ranks disagree on call ", number + 1, ": rank ",
                        world_rank(other), " runs ", to_text(entry.views[other], rank), "; rank ",
                        world_rank(rank), " runs ", to_text(entry.views[rank], other)));
    }
    // Views that are equal to one are equal to all; only all-to-all differs from pair to pair.
    if (call.kind != CollectiveKind::kAllToAll) break;
  }
  entry.begun[rank] = true;
  ++entry.count;
  while (!calls_.empty() && calls_.front().count == size()) {
    calls_.pop_front();
    ++first_call_;
  }
  return {};
}

Board::Message& Board::message(Channel& channel, std::uint64_t number) {
  const std::size_t index = number - channel.first;
  if (index == channel.messages.size()) channel.messages.push_back() = Message();
  return channel.messages[index];
}

void Board::settle(Channel& channel, Side side) {
  ++(side == Side::kSend ? channel.sends_waited : channel.receives_waited);
  while (channel.first < std::min(channel.sends_waited, channel.receives_waited)) {
    channel.messages.pop_front();
    ++channel.first;
  }
}

void Board::post_send(unsigned from, unsigned to, std::span<const std::byte> bytes, Time posted) {
  const MutexLock lock(mutex_);
  if (closed(from)) return;
  Channel& way = channel(from, to);
  const std::uint64_t number = way.sends++;
  Message& sent = message(way, number);
  sent.from = bytes;
  sent.earliest = std::max(sent.earliest, posted);
  if (number < way.receives && !members_[to].gone) match(from, to, number);
}

void Board::post_receive(unsigned from, unsigned to, std::span<std::byte> bytes, Time posted) {
  const MutexLock lock(mutex_);
  if (closed(to)) return;
  Channel& way = channel(from, to);
  const std::uint64_t number = way.receives++;
  Message& received = message(way, number);
  received.to = bytes;
  received.earliest = std::max(received.earliest, posted);
  if (number < way.sends && !members_[from].gone) match(from, to, number);
}

void Board::match(unsigned from, unsigned to, std::uint64_t number) {
  Channel& way = channel(from, to);
  Message& met = message(way, number);
  const std::span<const std::byte> source = met.from;
  const std::span<std::byte> target = met.to;
  if (source.size() != target.size()) {
    (void)fail_from(
        std::min(members_[from].calls, members_[to].calls),
        Status::error(Code::kInvalidArgument, "rank ", world_rank(from), " sends ", source.size(),
                      " B where rank ", world_rank(to), " wants ", target.size(), " B"));
    return;
  }
  met.transfer = network_->transfer(world_rank(from), world_rank(to), source.size(), met.earliest);
  Member& sender = members_[from];
  Member& receiver = members_[to];
  if (!source.empty()) {
    met.state = State::kCopying;
    ++sender.copies;
    ++receiver.copies;
    mutex_.unlock();
    std::memcpy(target.data(), source.data(), source.size());
    mutex_.lock();
    --sender.copies;
    --receiver.copies;
  }
  // The queue may have moved its messages meanwhile.
  message(way, number).state = State::kCopied;
  const auto wake = [](Member& member, unsigned peer) {
    if (!member.gone && member.waits_for != peer) return;
    member.waits_for.reset();
    member.changed.notify_all();
  };
  wake(sender, to);
  wake(receiver, from);
}

Result<Time> Board::wait_send(unsigned from, unsigned to, std::chrono::milliseconds timeout) {
  return wait(from, to, Side::kSend, timeout);
}

Result<Time> Board::wait_receive(unsigned from, unsigned to, std::chrono::milliseconds timeout) {
  return wait(from, to, Side::kReceive, timeout);
}

Result<Time> Board::wait(unsigned from, unsigned to, Side side, std::chrono::milliseconds timeout) {
  const bool sending = side == Side::kSend;
  const unsigned rank = sending ? from : to;
  const unsigned peer = sending ? to : from;
  const Time deadline = clock_.now() + timeout;
  const MutexLock lock(mutex_);
  Member& me = members_[rank];
  Channel& way = channel(from, to);
  const std::uint64_t number = sending ? way.sends_waited : way.receives_waited;
  while (true) {
    if (me.gone) return fail(Code::kPeerLost, "this worker has left the group");
    const Time now = clock_.now();
    // After a failure nothing was posted: then there may be no such message.
    const bool there = number - way.first < way.messages.size();
    const State state = there ? message(way, number).state : State::kPosted;
    if (state == State::kCopied) {
      const Transfer& transfer = message(way, number).transfer;
      const Time due = sending ? transfer.sent : transfer.delivered;
      if (now >= due) {
        settle(way, side);
        return due;
      }
      clock_.wait_until(me.changed, mutex_, due);
      continue;
    }
    if (failed(rank)) return tl::unexpected(failure_);
    const bool copying = state == State::kCopying;
    if (!copying && (members_[peer].gone || now >= deadline)) {
      return tl::unexpected(fail_from(me.calls, silence(rank, peer, timeout)));
    }
    me.waits_for = peer;
    clock_.wait_until(me.changed, mutex_, copying ? now + kCopyLook : deadline);
    me.waits_for.reset();
  }
}

void Board::leave(unsigned rank) {
  const MutexLock lock(mutex_);
  Member& me = members_[rank];
  me.gone = true;
  for (Member& member : members_) member.changed.notify_all();
  while (me.copies > 0) me.changed.wait(mutex_);
}

std::shared_ptr<Board> Board::subgroup(unsigned rank, std::span<const unsigned> ranks) {
  const MutexLock lock(mutex_);
  const auto place = static_cast<std::size_t>(std::ranges::find(ranks, rank) - ranks.begin());
  const auto key = invitations_.try_emplace({ranks.begin(), ranks.end()}).first;
  std::vector<Invitation>& open = key->second;
  const auto mine =
      std::ranges::find_if(open, [place](const Invitation& one) { return !one.taken[place]; });
  const auto index = static_cast<std::size_t>(mine - open.begin());
  if (index == open.size()) {
    std::vector<unsigned> world;
    for (const unsigned member : ranks) world.push_back(world_rank(member));
    open.push_back({.board = std::make_shared<Board>(network_, clock_, std::move(world)),
                    .taken = std::vector<bool>(ranks.size(), false)});
  }
  Invitation& invitation = open[index];
  invitation.taken[place] = true;
  std::shared_ptr<Board> board = invitation.board;
  if (++invitation.count == ranks.size()) {
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(index));
    if (open.empty()) invitations_.erase(key);
  }
  return board;
}

bool Board::failed(unsigned rank) const {
  return !failure_.is_ok() && members_[rank].calls >= failed_call_;
}

bool Board::closed(unsigned rank) const { return members_[rank].gone || failed(rank); }

unsigned Board::blamed(unsigned peer) const {
  unsigned last = peer;
  for (unsigned i = 0; i < size() && members_[last].waits_for && !members_[last].gone; ++i) {
    last = *members_[last].waits_for;
  }
  // A circle of waits has no end: then the peer itself is all there is to say.
  return members_[last].waits_for && !members_[last].gone ? peer : last;
}

Status Board::silence(unsigned rank, unsigned peer, std::chrono::milliseconds timeout) const {
  const unsigned last = blamed(peer);
  std::string text = "rank ";
  const auto add = [&text](const auto&... parts) { (detail::append(text, parts), ...); };
  add(world_rank(last));
  if (members_[last].gone) {
    add(" has left the group");
  } else {
    add(" has not answered for ", timeout.count(), " ms");
  }
  if (last != peer) add(" (rank ", world_rank(peer), " waits for it, too)");
  if (members_[last].calls < members_[rank].calls) {
    add("; it has begun ", members_[last].calls, " calls, this is call ", members_[rank].calls);
  }
  if (!members_[last].gone) add(kSilenceAdvice);
  return Status::error(Code::kPeerLost, text);
}

Status Board::fail_from(std::uint64_t call, Status status) {
  if (failure_.is_ok() || call < failed_call_) {
    failure_ = std::move(status);
    failed_call_ = call;
  }
  for (Member& member : members_) member.changed.notify_all();
  return failure_;
}

}  // namespace gradpress::comm
