#include "c10d_transport.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace gradpress::plugin {

namespace {

using std::chrono::milliseconds;

/// c10d's own timeouts never end a wait.
constexpr std::chrono::hours kForever{24 * 365};

/// As for the backend gloo, whose buffers c10d's Gloo uses: each message costs a handshake and two
/// changes of thread.
constexpr comm::Grain kGrain{.segment_bytes = std::size_t{512} << 10, .window = 3};

/// Tags are non-negative ints: the group's number, then this many bits of the call.
constexpr unsigned kCallBits = 21;
static_assert(C10dTransport::kMostGroups << kCallBits == std::uint32_t{1} << 31);

/// A tensor around memory that lives until the message was waited for. c10d knows one kind of
/// tensor; it does not write to those that are sent.
std::vector<at::Tensor> around(const std::byte* memory, std::size_t bytes) {
  return {at::from_blob(const_cast<std::byte*>(memory), {static_cast<std::int64_t>(bytes)},
                        at::TensorOptions(at::kByte))};
}

/// One number for the sub-group, different from those of all other groups of the world: the first
/// member draws it.
Result<std::uint32_t> draw_number(const C10dTransport::Options& options) {
  comm::store::StoreClient& store = *options.meeting->store;
  const std::string place = options.meeting->job + "/c10d/";
  if (options.rank == 0) {
    const auto drawn = store.add(place + "groups", 1);
    if (!drawn) return tl::unexpected(drawn.error());
    const Status told = store.set(place + options.group, std::to_string(*drawn));
    if (!told.is_ok()) return tl::unexpected(told);
  }
  const auto number = store.get(place + options.group, options.start_timeout);
  if (!number) return tl::unexpected(number.error());
  const auto value = static_cast<std::uint32_t>(std::stoul(*number));
  if (value >= C10dTransport::kMostGroups) {
    return fail(Code::kInvalidArgument, "backend c10d: wanted at most ", C10dTransport::kMostGroups,
                " groups over one process group, this would be number ", value,
                "; make the further ones over another process group");
  }
  return value;
}

}  // namespace

C10dTransport::C10dTransport(Options options)
    : options_(std::move(options)), ways_(options_.members.size()) {
  post_ = options_.meeting->watch->open({.group = options_.group,
                                         .members = options_.members,
                                         .rank = options_.rank,
                                         .interrupt = [this] { interrupt(); }});
}

C10dTransport::~C10dTransport() {
  post_->close();
  // Gloo lets go of the memory of works that are destroyed.
  ways_.clear();
}

comm::Grain C10dTransport::grain() const noexcept { return kGrain; }

Status C10dTransport::begin(const Collective& call) {
  const Status status = post_->begin(call);
  if (!status.is_ok()) return status;
  for (unsigned peer = 0; peer < size(); ++peer) {
    // Two calls with one tag do no harm: messages of one tag keep their order.
    const std::uint64_t low = post_->tag(peer) & ((std::uint64_t{1} << kCallBits) - 1);
    ways_[peer].tag = static_cast<int>(options_.number << kCallBits | low);
  }
  return {};
}

template <class Call>
void C10dTransport::guarded(unsigned peer, const Call& call) {
  if (fault_ || post_->failed()) return;
  try {
    call();
  } catch (const std::exception& error) {
    fault_ = Fault{.peer = peer, .why = error.what()};
  }
}

void C10dTransport::post_send(unsigned to, std::span<const std::byte> bytes) {
  const comm::Topology topology = options_.meeting->world.topology();
  const bool intra = topology.same_machine(options_.members[options_.rank], options_.members[to]);
  (intra ? intra_bytes_ : inter_bytes_).fetch_add(bytes.size(), std::memory_order_relaxed);
  guarded(to, [&] {
    auto tensors = around(bytes.data(), bytes.size());
    ways_[to].sends.push_back() = options_.process_group->send(
        tensors, static_cast<int>(options_.members[to]), ways_[to].tag);
  });
}

void C10dTransport::post_receive(unsigned from, std::span<std::byte> bytes) {
  guarded(from, [&] {
    auto tensors = around(bytes.data(), bytes.size());
    ways_[from].receives.push_back() = options_.process_group->recv(
        tensors, static_cast<int>(options_.members[from]), ways_[from].tag);
  });
}

Status C10dTransport::wait_send(unsigned to, milliseconds timeout) {
  return wait(ways_[to].sends, to, timeout);
}

Status C10dTransport::wait_receive(unsigned from, milliseconds timeout) {
  return wait(ways_[from].receives, from, timeout);
}

Status C10dTransport::wait(Queue& queue, unsigned peer, milliseconds timeout) {
  if (post_->failed()) return post_->failure();
  if (fault_) return post_->broken(fault_->peer, fault_->why);
  const Work work = queue.front();
  {
    const MutexLock lock(mutex_);
    waited_for_ = work;
  }
  post_->wait_begins(peer, timeout);
  bool done = false;
  try {
    // An interruption that came too late for its wait may end this one.
    while (!done && !post_->failed()) done = work->wait(kForever);
  } catch (const std::exception& error) {
    fault_ = Fault{.peer = peer, .why = error.what()};
  }
  post_->wait_ends();
  {
    const MutexLock lock(mutex_);
    waited_for_.reset();
  }
  if (fault_) return post_->broken(fault_->peer, fault_->why);
  if (!done) return post_->failure();
  queue.front().reset();
  queue.pop_front();
  return {};
}

void C10dTransport::interrupt() {
  const MutexLock lock(mutex_);
  if (waited_for_) waited_for_->abort();
}

SentBytes C10dTransport::sent_bytes() const {
  return {.intra = intra_bytes_.load(std::memory_order_relaxed),
          .inter = inter_bytes_.load(std::memory_order_relaxed)};
}

Result<std::unique_ptr<comm::Transport>> C10dTransport::subgroup(std::span<const unsigned> ranks) {
  Options options = options_;
  options.members.clear();
  for (const unsigned member : ranks) options.members.push_back(options_.members[member]);
  options.rank = static_cast<unsigned>(std::ranges::find(ranks, rank()) - ranks.begin());
  auto name = comm::meet_subgroup(*options_.meeting, {.parent = options_.group,
                                                      .members = options.members,
                                                      .asked = asked_[options.members]++,
                                                      .patience = options_.start_timeout});
  if (!name) return tl::unexpected(name.error());
  options.group = std::move(*name);
  const auto number = draw_number(options);
  if (!number) return tl::unexpected(number.error());
  options.number = *number;
  return std::make_unique<C10dTransport>(std::move(options));
}

}  // namespace gradpress::plugin
