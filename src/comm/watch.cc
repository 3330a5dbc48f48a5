#include "comm/watch.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "comm/store/wire.h"

namespace gradpress::comm {

namespace {

using store::Reader;
using store::StoreClient;
using store::Writer;

Time now() { return steady_clock().now(); }

bool lasts(const std::optional<Post::Wait>& wait) {
  return wait && now() - wait->since >= Watch::kPatience;
}

/// The number that an entry's key ends with.
std::optional<unsigned> rank_in(const StoreClient::Entry& entry, std::size_t prefix) {
  unsigned rank = 0;
  const char* end = entry.key.data() + entry.key.size();
  const auto [stop, error] = std::from_chars(entry.key.data() + prefix, end, rank);
  if (error != std::errc() || stop != end) return std::nullopt;
  return rank;
}

std::optional<unsigned> place_of(const Post& post, unsigned world_rank) {
  const auto found = std::ranges::find(post.members(), world_rank);
  if (found == post.members().end()) return std::nullopt;
  return static_cast<unsigned>(found - post.members().begin());
}

}  // namespace

Result<std::shared_ptr<Watch>> Watch::start(std::unique_ptr<StoreClient> store, Options options) {
  std::shared_ptr<Watch> watch(new Watch(std::move(store), std::move(options)));
  const Status status = watch->store_->set_will(
      watch->key("gone") + std::to_string(watch->options_.rank), "its connection ended");
  if (!status.is_ok()) return tl::unexpected(status);
  watch->thread_ = std::thread([self = watch.get()] { self->work(); });
  return watch;
}

Watch::Watch(std::unique_ptr<StoreClient> store, Options options)
    : options_(std::move(options)), store_(std::move(store)) {}

Watch::~Watch() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  bell_->ring();
  thread_.join();
}

std::shared_ptr<Post> Watch::open(Post::Options options) {
  auto post = std::make_shared<Post>(bell_, std::move(options));
  const MutexLock lock(mutex_);
  posts_.push_back(post);
  return post;
}

std::string Watch::key(std::string_view kind, std::string_view group) const {
  std::string text = options_.job;
  text.append("/").append(kind).append("/");
  if (!group.empty()) text.append(group).append("/");
  return text;
}

void Watch::work() {
  last_look_ = now();
  bool stopping = false;
  while (!stopping) {
    bell_->wait_until(now() + kTick);
    stopping = stopping_;
    Posts closed;
    const Posts posts = open_posts(closed);
    look(posts, closed);
  }
  // Whoever leaves in good order has no will.
  if (store_failure_.is_ok()) (void)store_->set_will("", "");
}

Watch::Posts Watch::open_posts(Posts& closed) {
  const MutexLock lock(mutex_);
  const auto first = std::partition(posts_.begin(), posts_.end(),
                                    [](const auto& post) { return !post->closed(); });
  closed.assign(first, posts_.end());
  posts_.erase(first, posts_.end());
  return posts_;
}

void Watch::look(const Posts& posts, const Posts& closed) {
  if (store_failure_.is_ok()) store_failure_ = confer(posts, closed);
  if (store_failure_.is_ok()) return;
  for (const auto& post : posts) {
    if (!post->failed()) judge_alone(*post);
  }
}

Status Watch::confer(const Posts& posts, const Posts& closed) {
  const Time awake = std::min<Time>(now() - last_look_, kBeat);
  last_look_ = now();
  for (const auto& post : closed) {
    const Status status = store_->set(key("left", post->group()) + std::to_string(options_.rank),
                                      std::to_string(post->calls().ended));
    if (!status.is_ok()) return status;
  }
  bool anyone_waits = false;
  for (const auto& post : posts) {
    if (post->failed()) continue;
    anyone_waits = anyone_waits || lasts(post->wait()) || post->broken_link();
  }
  const bool beat_due = now() - last_beat_ >= kBeat;
  Status status;
  if (beat_due) status = beat(posts);
  if (status.is_ok() && (beat_due || anyone_waits)) status = read_verdicts(posts);
  if (status.is_ok() && anyone_waits) status = read_pulses(awake);
  for (const auto& post : posts) {
    if (!status.is_ok()) return status;
    if (post->failed()) continue;
    const auto wait = post->wait();
    status = tell_of_wait(*post, wait);
    if (status.is_ok() && (lasts(wait) || post->broken_link())) status = confer_on(*post, wait);
  }
  if (!anyone_waits) pulses_.clear();
  return status;
}

Status Watch::beat(const Posts& posts) {
  last_beat_ = now();
  Writer writer;
  writer.u64(++beats_);
  for (const auto& post : posts) {
    const Calls calls = post->calls();
    writer.text(post->group()).u64(calls.begun).u64(calls.ended);
  }
  return store_->set(key("beat") + std::to_string(options_.rank), writer.bytes());
}

Status Watch::read_pulses(Time awake) {
  const std::string prefix = key("beat");
  const auto entries = store_->list(prefix);
  if (!entries) return entries.error();
  for (const StoreClient::Entry& entry : *entries) {
    const auto rank = rank_in(entry, prefix.size());
    if (!rank) continue;
    Reader reader(entry.value);
    const std::uint64_t count = reader.u64();
    Pulse& pulse = pulses_[*rank];
    pulse.still = pulse.count == count ? pulse.still + awake : Time(0);
    pulse.count = count;
    while (reader.ok() && !reader.at_end()) {
      const std::string_view group = reader.text();
      Calls calls{.begun = reader.u64(), .ended = reader.u64()};
      pulse.calls.insert_or_assign(std::string(group), calls);
    }
  }
  return {};
}

Status Watch::read_verdicts(const Posts& posts) {
  const std::string prefix = key("verdict");
  const auto entries = store_->list(prefix);
  if (!entries) return entries.error();
  for (const StoreClient::Entry& entry : *entries) {
    const auto verdict = decode_verdict(entry.value);
    if (verdict) verdicts_.insert_or_assign(entry.key.substr(prefix.size()), *verdict);
  }
  for (const auto& post : posts) {
    const auto found = verdicts_.find(post->group());
    if (found == verdicts_.end() || post->failed()) continue;
    // An earlier call needs nothing of those who failed, unless it fails by itself.
    const bool concerned = post->calls().begun >= found->second.call || post->broken_link();
    if (concerned) adopt(*post, found->second);
  }
  return {};
}

Status Watch::tell_of_wait(const Post& post, const std::optional<Post::Wait>& wait) {
  std::string text;
  if (lasts(wait)) {
    text = encode(Report{.call = post.calls().begun, .peer = wait->peer, .view = post.view()});
  }
  std::string& told = told_[post.group()];
  if (text == told) return {};
  told = text;
  return store_->set(key("wait", post.group()) + std::to_string(options_.rank), text);
}

Status Watch::confer_on(Post& post, const std::optional<Post::Wait>& wait) {
  const auto one = read_case(post, wait);
  if (!one) return one.error();
  const auto mine = judge(*one);
  if (!mine) return {};
  const auto first =
      store_->compare_set(options_.job + "/verdict/" + post.group(), "", encode(*mine));
  if (!first) return first.error();
  adopt(post, decode_verdict(*first).value_or(*mine));
  return {};
}

Result<Case> Watch::read_case(const Post& post, const std::optional<Post::Wait>& wait) {
  Case one{.members = post.members(),
           .rank = post.rank(),
           .call = post.calls().begun,
           .broken = post.broken_link(),
           .witnesses = std::vector<Witness>(post.size())};
  if (wait) {
    one.peer = wait->peer;
    one.waited = now() - wait->since;
    one.timeout = wait->timeout;
  }
  Status status;
  const auto each = [&](const std::string& prefix, const auto& note) {
    if (!status.is_ok()) return;
    const auto entries = store_->list(prefix);
    if (!entries) {
      status = entries.error();
      return;
    }
    for (const StoreClient::Entry& entry : *entries) {
      const auto rank = rank_in(entry, prefix.size());
      const auto place = rank ? place_of(post, *rank) : std::nullopt;
      if (place) note(one.witnesses[*place], *place, entry.value);
    }
  };
  each(key("gone"), [](Witness& witness, unsigned, const std::string&) { witness.gone = true; });
  each(key("left", post.group()), [&](Witness& witness, unsigned place, const std::string& value) {
    std::uint64_t calls = 0;
    (void)std::from_chars(value.data(), value.data() + value.size(), calls);
    witness.left = calls;
    if (options_.host == post.members()[place]) host_left_[post.group()] = calls;
  });
  each(key("wait", post.group()), [&](Witness& witness, unsigned, const std::string& value) {
    witness.report = decode_report(value, post.size());
  });
  if (!status.is_ok()) return tl::unexpected(status);
  for (const auto& [rank, pulse] : pulses_) {
    const auto place = place_of(post, rank);
    if (!place) continue;
    one.witnesses[*place].still = pulse.still;
    const auto calls = pulse.calls.find(post.group());
    if (calls != pulse.calls.end()) one.witnesses[*place].calls = calls->second;
  }
  return one;
}

void Watch::judge_alone(Post& post) const {
  const auto wait = post.wait();
  const auto broken = post.broken_link();
  if (!lasts(wait) && !broken) return;
  const auto lost = [&](const auto&... parts) {
    post.fail(Status::error(Code::kPeerLost, parts...));
  };
  const std::string address = store_->address().text();
  const bool closed = store_->closed();
  const bool host_is_member =
      options_.host && *options_.host != options_.rank && place_of(post, *options_.host);
  const auto left = host_left_.find(post.group());
  const bool host_is_done = left != host_left_.end() && left->second >= post.calls().begun;
  if (closed && host_is_member && !host_is_done) {
    return lost("rank ", *options_.host, " is lost: its store at ", address, " was closed");
  }
  const bool over = wait && now() - wait->since >= wait->timeout;
  if (!over && !(broken && broken->since >= kMystery)) return;
  const unsigned peer = post.members()[over ? wait->peer : broken->peer];
  if (closed) {
    return lost("rank ", peer, over ? " has not answered" : " broke the connection",
                "; the store at ", address, " (of ",
                options_.host ? "rank " + std::to_string(*options_.host) : "the launcher",
                ") is gone, so that nobody could be asked who is to blame");
  }
  lost("neither rank ", peer, " nor the store at ", address,
       " answers: this worker has lost everyone; look at its own network link first");
}

void Watch::adopt(Post& post, const Verdict& verdict) const {
  if (verdict.blamed == options_.rank && verdict.code == Code::kPeerLost) {
    post.fail(
        Status::error(Code::kPeerLost, "the others went on without this worker: ", verdict.text));
  } else {
    post.fail(Status::error(verdict.code, verdict.text));
  }
}

}  // namespace gradpress::comm
