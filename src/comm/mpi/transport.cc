#include "comm/mpi/transport.h"

#include <algorithm>
#include <utility>

namespace gradpress::comm {

namespace {

constexpr std::uint32_t kNoTag = ~std::uint32_t{0};
/// MPI works only when a lane looks, so more must be under way than a link carries between two
/// looks. Measured at 1 Gbit between 4 hosts (decisions/0014): 1 MB posted ahead takes a third
/// longer than 3 MB.
constexpr Grain kGrain{.segment_bytes = std::size_t{512} << 10, .window = 6};
/// How long an end that goes away waits for MPI to let go of its buffers.
constexpr std::chrono::seconds kFarewell{1};

}  // namespace

std::chrono::nanoseconds MpiNap::next() {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::microseconds(200);
  constexpr std::chrono::nanoseconds kLong = std::chrono::milliseconds(50);
  length_ = std::min(2 * length_, kLongest);
  slept_ += length_;
  return slept_ < kLong ? length_ : std::chrono::milliseconds(1);
}

MpiTransport::MpiTransport(std::unique_ptr<MpiPort> port, Options options)
    : port_(std::move(port)),
      options_(std::move(options)),
      sends_(port_->size()),
      receives_(port_->size()),
      tags_(port_->size(), kNoTag) {
  post_ = options_.meeting->watch->open({.group = options_.group,
                                         .members = options_.members,
                                         .rank = port_->rank(),
                                         .interrupt = [this] {
                                           const MutexLock lock(mutex_);
                                           interrupted_.notify_all();
                                         }});
}

MpiTransport::~MpiTransport() {
  close();
  for (Queue& queue : receives_) {
    for (std::size_t i = 0; i < queue.size(); ++i) port_->cancel(queue[i]);
  }
  const Time deadline = steady_clock().now() + kFarewell;
  const auto all_emptied = [this] {
    bool emptied_all = true;
    for (Queue& queue : receives_) emptied_all = emptied(queue) && emptied_all;
    for (Queue& queue : sends_) emptied_all = emptied(queue) && emptied_all;
    return emptied_all;
  };
  bool let_go = all_emptied();
  for (MpiNap nap; !let_go && steady_clock().now() < deadline; let_go = all_emptied()) {
    sleep_for(nap.next());
  }
  if (!let_go || lost_) port_->abandon();
}

Grain MpiTransport::grain() const noexcept { return kGrain; }

Status MpiTransport::begin(const Collective& call) {
  std::ranges::fill(tags_, kNoTag);
  return post_->begin(call);
}

std::uint32_t MpiTransport::tag(unsigned peer) {
  // Made once per call and peer. Two calls with one tag do no harm: MPI keeps the order of
  // messages.
  if (tags_[peer] == kNoTag) {
    tags_[peer] = static_cast<std::uint32_t>(post_->tag(peer) % (port_->most_tag() + 1ULL));
  }
  return tags_[peer];
}

void MpiTransport::post_send(unsigned to, std::span<const std::byte> bytes) {
  if (post_->failed() || !failure_.is_ok()) return;
  const bool intra = options_.meeting->world.topology().same_machine(options_.members[rank()],
                                                                     options_.members[to]);
  (intra ? intra_bytes_ : inter_bytes_).fetch_add(bytes.size(), std::memory_order_relaxed);
  put(sends_[to], port_->send(to, tag(to), bytes));
}

void MpiTransport::post_receive(unsigned from, std::span<std::byte> bytes) {
  if (post_->failed() || !failure_.is_ok()) return;
  put(receives_[from], port_->receive(from, tag(from), bytes));
}

void MpiTransport::put(Queue& queue, const Result<MpiRequest>& begun) {
  if (begun) {
    queue.push_back() = *begun;
  } else {
    failure_ = begun.error();
  }
}

Status MpiTransport::wait_send(unsigned to, std::chrono::milliseconds timeout) {
  return wait(sends_[to], to, timeout);
}

Status MpiTransport::wait_receive(unsigned from, std::chrono::milliseconds timeout) {
  return wait(receives_[from], from, timeout);
}

Status MpiTransport::wait(Queue& queue, unsigned peer, std::chrono::milliseconds timeout) {
  const Status status = wait_for_front(queue, peer, timeout);
  lost_ = lost_ || !status.is_ok();
  return status;
}

Status MpiTransport::wait_for_front(Queue& queue, unsigned peer,
                                    std::chrono::milliseconds timeout) {
  MpiNap nap;
  bool waiting = false;
  while (true) {
    // After a failure nothing was posted: then there may be no such message.
    if (queue.empty()) return post_->failed() ? post_->failure() : failure_;
    const auto done = port_->test(queue.front());
    if (done && *done) break;
    if (!done) {
      queue.pop_front();
      failure_ = done.error().code() == Code::kInvalidArgument
                     ? done.error()
                     : post_->broken(peer, done.error().message());
      return failure_;
    }
    if (post_->failed()) return post_->failure();
    if (!failure_.is_ok()) return failure_;
    if (!waiting) post_->wait_begins(peer, timeout);
    waiting = true;
    sleep_for(nap.next());
  }
  if (waiting) post_->wait_ends();
  queue.pop_front();
  return {};
}

void MpiTransport::sleep_for(std::chrono::nanoseconds length) {
  const Time time = steady_clock().now() + length;
  const MutexLock lock(mutex_);
  steady_clock().wait_until(interrupted_, mutex_, time);
}

bool MpiTransport::emptied(Queue& queue) {
  while (!queue.empty()) {
    const auto done = port_->test(queue.front());
    if (done && !*done) return false;
    queue.pop_front();
  }
  return true;
}

SentBytes MpiTransport::sent_bytes() const {
  return {.intra = intra_bytes_.load(std::memory_order_relaxed),
          .inter = inter_bytes_.load(std::memory_order_relaxed)};
}

Result<std::unique_ptr<Transport>> MpiTransport::subgroup(std::span<const unsigned> ranks) {
  Options options = options_;
  options.members.clear();
  for (const unsigned member : ranks) options.members.push_back(options_.members[member]);
  const unsigned asked = asked_[options.members]++;
  // Forming a communicator waits for all members without end, so they come together first, where
  // waiting has an end.
  auto name = meet_subgroup(*options_.meeting, {.parent = options_.group,
                                                .members = options.members,
                                                .asked = asked,
                                                .patience = options_.start_timeout});
  if (!name) return tl::unexpected(name.error());
  options.group = std::move(*name);
  auto port = port_->subgroup(ranks, asked % port_->most_tag());
  if (!port) return tl::unexpected(port.error());
  return std::make_unique<MpiTransport>(std::move(*port), std::move(options));
}

}  // namespace gradpress::comm
