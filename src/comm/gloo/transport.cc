#include "comm/gloo/transport.h"

#include <gloo/rendezvous/store.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "comm/quiet_pipe.h"

namespace gradpress::comm {

namespace {

using std::chrono::milliseconds;

/// Gloo's own timeouts never end a wait.
constexpr std::chrono::hours kForever{24 * 365};
/// Gloo gives a connection this many times its timeout to come about.
constexpr int kConnectFactor = 5;
constexpr milliseconds kLeastConnect{2000};

/// Every message costs Gloo a handshake and two changes of thread: with pieces of 128 KiB an
/// all-reduce takes 1.3 to 1.8 times as long as Gloo's own, with these about as long.
constexpr Grain kGrain{.segment_bytes = std::size_t{512} << 10, .window = 3};

/// Our store as Gloo wants it: failures are exceptions.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(std::shared_ptr<Meeting> meeting, std::string prefix, milliseconds patience)
      : meeting_(std::move(meeting)), prefix_(std::move(prefix)), patience_(patience) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const Status status =
        meeting_->store->set(prefix_ + key, std::string_view(data.data(), data.size()));
    if (!status.is_ok()) throw std::runtime_error(status.message());
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = value_of(key, patience_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, patience_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& patience) override {
    for (const std::string& key : keys) (void)value_of(key, patience);
  }

 private:
  std::string value_of(const std::string& key, milliseconds patience) {
    auto value = meeting_->store->get(prefix_ + key, patience);
    if (!value) throw std::runtime_error(value.error().message());
    return std::move(*value);
  }

  const std::shared_ptr<Meeting> meeting_;
  const std::string prefix_;
  const milliseconds patience_;
};

/// Gloo takes the store by reference, since 2025 by shared_ptr. A template, so that only the call
/// that this Gloo has is compiled.
template <class Context>
void connect_full_mesh(Context& context, const std::shared_ptr<GlooStore>& store,
                       std::shared_ptr<gloo::transport::Device>& device) {
  if constexpr (requires { context.connectFullMesh(store, device); }) {
    context.connectFullMesh(store, device);
  } else {
    context.connectFullMesh(*store, device);
  }
}

}  // namespace

Result<std::unique_ptr<Transport>> GlooTransport::connect(Options options) {
  const auto rank = static_cast<int>(options.rank);
  const auto size = static_cast<int>(options.members.size());
  std::shared_ptr<gloo::rendezvous::Context> context;
  if (size > 1) {
    try {
      const QuietPipe quiet;
      context = std::make_shared<gloo::rendezvous::Context>(rank, size);
      context->setTimeout(std::max(options.start_timeout / kConnectFactor, kLeastConnect));
      const auto store = std::make_shared<GlooStore>(
          options.meeting, options.meeting->job + "/gloo/" + options.group + "/",
          options.start_timeout);
      connect_full_mesh(*context, store, options.device);
    } catch (const std::exception& error) {
      return fail(Code::kPeerLost, options.group,
                  ": all ranks have come, but not all could connect to each other: ", error.what(),
                  "; see whether the network lets TCP through between the machines, and whether "
                  "GLOO_SOCKET_IFNAME names the right interface");
    }
  }
  return std::unique_ptr<Transport>(new GlooTransport(std::move(options), std::move(context)));
}

GlooTransport::GlooTransport(Options options, std::shared_ptr<gloo::rendezvous::Context> context)
    : options_(std::move(options)), context_(std::move(context)), ways_(options_.members.size()) {
  post_ = options_.meeting->watch->open({.group = options_.group,
                                         .members = options_.members,
                                         .rank = options_.rank,
                                         .interrupt = [this] { interrupt(); }});
}

GlooTransport::~GlooTransport() {
  post_->close();
  // Gloo lets go of the memory of buffers that are destroyed, before its connections close.
  ways_.clear();
}

Grain GlooTransport::grain() const noexcept { return kGrain; }

Status GlooTransport::begin(const Collective& call) {
  const Status status = post_->begin(call);
  if (!status.is_ok()) return status;
  for (unsigned peer = 0; peer < size(); ++peer) ways_[peer].tag = post_->tag(peer);
  return {};
}

template <class Work>
void GlooTransport::guarded(unsigned peer, const Work& work) {
  if (fault_ || post_->failed()) return;
  try {
    work();
  } catch (const std::exception& error) {
    fault_ = Fault{.peer = peer, .why = error.what()};
  }
}

void GlooTransport::post_send(unsigned to, std::span<const std::byte> bytes) {
  const Topology topology = options_.meeting->world.topology();
  const bool intra = topology.same_machine(options_.members[options_.rank], options_.members[to]);
  (intra ? intra_bytes_ : inter_bytes_).fetch_add(bytes.size(), std::memory_order_relaxed);
  guarded(to, [&] {
    // Gloo knows one kind of buffer; it does not write to those that are sent.
    std::unique_ptr<Buffer>& buffer = ways_[to].sends.push_back();
    buffer = context_->createUnboundBuffer(const_cast<std::byte*>(bytes.data()), bytes.size());
    buffer->send(static_cast<int>(to), ways_[to].tag);
  });
}

void GlooTransport::post_receive(unsigned from, std::span<std::byte> bytes) {
  guarded(from, [&] {
    std::unique_ptr<Buffer>& buffer = ways_[from].receives.push_back();
    buffer = context_->createUnboundBuffer(bytes.data(), bytes.size());
    buffer->recv(static_cast<int>(from), ways_[from].tag);
  });
}

Status GlooTransport::wait_send(unsigned to, milliseconds timeout) {
  return wait(to, Side::kSend, timeout);
}

Status GlooTransport::wait_receive(unsigned from, milliseconds timeout) {
  return wait(from, Side::kReceive, timeout);
}

Status GlooTransport::wait(unsigned peer, Side side, milliseconds timeout) {
  const bool sending = side == Side::kSend;
  if (post_->failed()) return post_->failure();
  if (fault_) return post_->broken(fault_->peer, fault_->why);
  Queue& queue = sending ? ways_[peer].sends : ways_[peer].receives;
  Buffer& buffer = *queue.front();
  {
    const MutexLock lock(mutex_);
    waited_for_ = &buffer;
    side_ = side;
  }
  post_->wait_begins(peer, timeout);
  bool done = false;
  try {
    // An interruption that came too late for its wait may end this one.
    while (!done && !post_->failed()) {
      done = sending ? buffer.waitSend(kForever) : buffer.waitRecv(kForever);
    }
  } catch (const std::exception& error) {
    fault_ = Fault{.peer = peer, .why = error.what()};
  }
  post_->wait_ends();
  {
    const MutexLock lock(mutex_);
    waited_for_ = nullptr;
  }
  if (fault_) return post_->broken(fault_->peer, fault_->why);
  if (!done) return post_->failure();
  queue.front().reset();
  queue.pop_front();
  return {};
}

void GlooTransport::interrupt() {
  const MutexLock lock(mutex_);
  if (waited_for_ == nullptr) return;
  if (side_ == Side::kSend) {
    waited_for_->abortWaitSend();
  } else {
    waited_for_->abortWaitRecv();
  }
}

void GlooTransport::close() { post_->close(); }

SentBytes GlooTransport::sent_bytes() const {
  return {.intra = intra_bytes_.load(std::memory_order_relaxed),
          .inter = inter_bytes_.load(std::memory_order_relaxed)};
}

Result<std::unique_ptr<Transport>> GlooTransport::subgroup(std::span<const unsigned> ranks) {
  Options options = options_;
  options.members.clear();
  for (const unsigned rank : ranks) options.members.push_back(options_.members[rank]);
  options.rank = static_cast<unsigned>(std::ranges::find(ranks, rank()) - ranks.begin());
  auto name = meet_subgroup(*options_.meeting, {.parent = options_.group,
                                                .members = options.members,
                                                .asked = asked_[options.members]++,
                                                .patience = options_.start_timeout});
  if (!name) return tl::unexpected(name.error());
  options.group = std::move(*name);
  return connect(std::move(options));
}

}  // namespace gradpress::comm
