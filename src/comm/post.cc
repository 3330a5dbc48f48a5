#include "comm/post.h"

#include <utility>

namespace gradpress::comm {

namespace {

Time now() { return steady_clock().now(); }

/// The watch explains a broken connection in kMystery; longer only if its thread gets no time or
/// the store does not answer.
constexpr std::chrono::seconds kUnexplained{20};

}  // namespace

void Bell::ring() {
  {
    const MutexLock lock(mutex_);
    rung_ = true;
  }
  changed_.notify_one();
}

void Bell::wait_until(Time time) {
  const MutexLock lock(mutex_);
  while (!rung_ && now() < time) steady_clock().wait_until(changed_, mutex_, time);
  rung_ = false;
}

Post::Post(std::shared_ptr<Bell> bell, Options options)
    : bell_(std::move(bell)), options_(std::move(options)) {}

Status Post::begin(const Collective& call) {
  const MutexLock lock(mutex_);
  view_of(call, rank(), size(), view_);
  ++begun_;
  return failure_;
}

std::uint64_t Post::tag(unsigned peer) const {
  const MutexLock lock(mutex_);
  return pair_tag(view_, rank(), peer, begun_);
}

void Post::wait_begins(unsigned peer, std::chrono::milliseconds timeout) {
  wait_peer_ = peer;
  wait_since_ = now().count();
  wait_timeout_ = timeout.count();
  ++turn_;
}

void Post::wait_ends() { ++turn_; }

std::optional<Post::Wait> Post::wait() const {
  const std::uint64_t turn = turn_;
  const Wait wait{.peer = wait_peer_,
                  .since = Time(wait_since_),
                  .timeout = std::chrono::milliseconds(wait_timeout_)};
  // Another turn meanwhile: no wait that lasts.
  if (turn % 2 == 0 || turn != turn_) return std::nullopt;
  return wait;
}

Status Post::broken(unsigned peer, std::string_view why) {
  {
    const MutexLock lock(mutex_);
    if (!broken_) broken_ = BrokenLink{.peer = peer, .why = std::string(why), .since = now()};
  }
  bell_->ring();
  const Time deadline = now() + kUnexplained;
  const MutexLock lock(mutex_);
  while (failure_.is_ok() && now() < deadline) {
    steady_clock().wait_until(changed_, mutex_, deadline);
  }
  if (failure_.is_ok()) {
    failure_ =
        Status::error(Code::kPeerLost, "the connection to rank ", members()[peer], " broke: ", why);
    failed_ = true;
  }
  return failure_;
}

std::optional<BrokenLink> Post::broken_link() const {
  const MutexLock lock(mutex_);
  std::optional<BrokenLink> link = broken_;
  if (link) link->since = now() - link->since;
  return link;
}

CallView Post::view() const {
  const MutexLock lock(mutex_);
  return view_;
}

Status Post::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

void Post::fail(const Status& status) {
  const MutexLock lock(mutex_);
  if (failure_.is_ok()) failure_ = status;
  failed_ = true;
  changed_.notify_all();
  if (!closed_ && options_.interrupt) options_.interrupt();
}

void Post::close() {
  if (closed_) return;
  fail(Status::error(Code::kPeerLost, "this worker has left the group"));
  {
    // Whoever interrupts holds the lock.
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  bell_->ring();
}

}  // namespace gradpress::comm
