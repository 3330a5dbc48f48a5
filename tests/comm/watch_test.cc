// What lanes are told when others stop, leave, die or run something else; without any messages.
#include "comm/watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/store/server.h"

namespace gradpress::comm {
namespace {

using namespace std::chrono_literals;
using store::StoreClient;
using store::StoreServer;

/// One process of the emulated job.
struct Process {
  std::shared_ptr<Watch> watch;
  std::shared_ptr<Post> post;
};

class Watches : public ::testing::Test {
 protected:
  Watches() {
    bool in_use = false;
    server_ = std::move(*StoreServer::start({.host = "127.0.0.1", .port = 0}, in_use));
  }

  std::unique_ptr<StoreClient> client() const {
    auto made = StoreClient::connect({.host = "127.0.0.1", .port = server_->port()}, 30s);
    EXPECT_TRUE(made.has_value());
    return std::move(*made);
  }
  /// `host`: the rank whose process holds the store.
  Process process(unsigned rank, unsigned size, std::optional<unsigned> host = {}) {
    std::vector<unsigned> members;
    for (unsigned i = 0; i < size; ++i) members.push_back(i);
    auto watch = Watch::start(client(), {.job = "job", .rank = rank, .host = host});
    EXPECT_TRUE(watch.has_value());
    auto post = (*watch)->open({.group = "world", .members = members, .rank = rank});
    return {.watch = std::move(*watch), .post = std::move(post)};
  }

  std::unique_ptr<StoreServer> server_;
};

void begin(const Process& process, std::size_t bytes = 8) {
  static std::array<std::byte, 64> memory;
  ASSERT_TRUE(process.post
                  ->begin({.kind = CollectiveKind::kAllReduce,
                           .type = DataType::kFloat32,
                           .in = std::span(memory).first(bytes),
                           .out = std::span(memory).first(bytes),
                           .tensor = "t"})
                  .is_ok());
}

/// What the watch makes of a wait that nobody ends.
Status failure_of(const Process& process) {
  for (int i = 0; i < 6000 && !process.post->failed(); ++i) std::this_thread::sleep_for(10ms);
  return process.post->failure();
}

void expect_tells(const Status& status, Code code, std::string_view words) {
  EXPECT_EQ(status.code(), code) << status.to_string();
  EXPECT_NE(status.message().find(words), std::string::npos) << status.to_string();
}

TEST_F(Watches, AllBlameTheRankThatNeverCame) {
  std::vector<Process> ranks;
  for (unsigned rank = 0; rank < 4; ++rank) ranks.push_back(process(rank, 4));
  for (const unsigned rank : {0U, 1U, 3U}) {
    begin(ranks[rank]);
    ranks[rank].post->wait_begins((rank + 3) % 4, 600ms);
  }
  for (const unsigned rank : {0U, 1U, 3U}) {
    expect_tells(failure_of(ranks[rank]), Code::kPeerLost, "rank 2 has not answered for 600 ms");
  }
  EXPECT_EQ(ranks[0].post->failure().message(), ranks[3].post->failure().message());
}

TEST_F(Watches, ADeadProcessIsNamedAtOnceWithoutTheTimeout) {
  Process zero = process(0, 3);
  Process one = process(1, 3);
  auto victim = client();
  ASSERT_TRUE(victim->set_will("job/gone/2", "killed").is_ok());
  for (const Process* each : {&zero, &one}) {
    begin(*each);
    each->post->wait_begins(2 - each->post->rank(), 3600s);
  }
  victim.reset();
  for (const Process* each : {&zero, &one}) {
    expect_tells(failure_of(*each), Code::kPeerLost, "rank 2 is lost: its process has ended");
  }
}

TEST_F(Watches, AnEndThatLeftIsNamedAtOnce) {
  Process zero = process(0, 2);
  {
    Process one = process(1, 2);
    begin(one);
    one.post->end();
    one.post->close();
  }
  begin(zero);
  zero.post->wait_begins(1, 3600s);
  std::this_thread::sleep_for(400ms);
  EXPECT_FALSE(zero.post->failed()) << "rank 1 had ended that call";
  zero.post->wait_ends();
  zero.post->end();
  begin(zero);
  zero.post->wait_begins(1, 3600s);
  expect_tells(failure_of(zero), Code::kPeerLost, "rank 1 has left the group");
}

TEST_F(Watches, RanksThatDisagreeAreToldWithoutTheTimeout) {
  Process zero = process(0, 2);
  Process one = process(1, 2);
  begin(zero, 8);
  begin(one, 12);
  zero.post->wait_begins(1, 3600s);
  one.post->wait_begins(0, 3600s);
  for (const Process* each : {&zero, &one}) {
    expect_tells(failure_of(*each), Code::kInvalidArgument,
                 "ranks disagree on call 1: rank 0 runs all-reduce of t, 2 float32; rank 1 runs "
                 "all-reduce of t, 3 float32");
  }
  EXPECT_NE(zero.post->tag(1), one.post->tag(0));
}

TEST_F(Watches, AVerdictSparesCallsBeforeIt) {
  Process zero = process(0, 2);
  begin(zero);
  zero.post->wait_begins(1, 3600s);
  ASSERT_TRUE(client()
                  ->set("job/verdict/world", encode(Verdict{.call = 2, .blamed = 1, .text = "why"}))
                  .is_ok());
  std::this_thread::sleep_for(400ms);
  EXPECT_FALSE(zero.post->failed());
  zero.post->wait_ends();
  begin(zero);
  zero.post->wait_begins(1, 3600s);
  expect_tells(failure_of(zero), Code::kPeerLost, "why");
}

TEST_F(Watches, AStoreThatEndsWithItsHostIsTheHostsLoss) {
  Process one = process(1, 3, 0U);
  begin(one);
  one.post->wait_begins(2, 3600s);
  server_.reset();
  expect_tells(failure_of(one), Code::kPeerLost, "rank 0 is lost: its store at 127.0.0.1:");
}

TEST_F(Watches, WithoutALaunchersStoreTheTimeoutStillEndsTheWait) {
  Process one = process(1, 3);
  server_.reset();
  begin(one);
  one.post->wait_begins(2, 300ms);
  expect_tells(failure_of(one), Code::kPeerLost, "the launcher) is gone");
}

TEST_F(Watches, ABrokenConnectionIsExplainedByTheOneThatDied) {
  Process zero = process(0, 3);
  auto victim = client();
  ASSERT_TRUE(victim->set_will("job/gone/2", "killed").is_ok());
  begin(zero);
  std::thread killer([&] { victim.reset(); });
  expect_tells(zero.post->broken(1, "reset"), Code::kPeerLost, "rank 2 is lost");
  killer.join();
}

TEST_F(Watches, InterruptsTheLane) {
  std::atomic<int> interrupted = 0;
  Process zero = process(0, 2);
  auto post = zero.watch->open(
      {.group = "other", .members = {0, 1}, .rank = 0, .interrupt = [&] { ++interrupted; }});
  (void)post->begin({.kind = CollectiveKind::kBarrier});
  post->wait_begins(1, 200ms);
  for (int i = 0; i < 6000 && interrupted == 0; ++i) std::this_thread::sleep_for(10ms);
  EXPECT_EQ(interrupted, 1);
  EXPECT_TRUE(post->failed());
  post->close();
}

TEST_F(Watches, AWorkerThatWasGivenUpIsToldSo) {
  Process zero = process(0, 2);
  begin(zero);
  zero.post->wait_begins(1, 3600s);
  ASSERT_TRUE(client()
                  ->set("job/verdict/world", encode(Verdict{.call = 1, .blamed = 0, .text = "why"}))
                  .is_ok());
  expect_tells(failure_of(zero), Code::kPeerLost, "the others went on without this worker: why");
}

}  // namespace
}  // namespace gradpress::comm
