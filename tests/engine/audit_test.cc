// The wire audit, broken on purpose: a backend that counts too much.
#include "engine/audit.h"

#include <atomic>
#include <functional>

#include "engine/engine_workers.h"

namespace gradpress {
namespace {

using test::kWorkers;
using Gradients = test::EngineGradients;

/// Bytes that a call is counted for beside its own.
using Extra = std::function<std::uint64_t(const Collective&)>;

/// Counts what `extra` says on top; its sub-groups do too.
class Miscounting final : public Group {
 public:
  Miscounting(std::unique_ptr<Group> inner, Extra extra)
      : inner_(std::move(inner)), extra_(std::move(extra)) {}

  unsigned rank() const noexcept override { return inner_->rank(); }
  unsigned size() const noexcept override { return inner_->size(); }
  std::string_view backend() const noexcept override { return inner_->backend(); }
  Result<Ticket> start(const Collective& call) override {
    more_ += extra_(call);
    return inner_->start(call);
  }
  Status wait(Ticket ticket) override { return inner_->wait(ticket); }
  bool done(Ticket ticket) const override { return inner_->done(ticket); }
  Result<std::unique_ptr<Group>> subgroup(std::span<const unsigned> ranks) override {
    auto made = inner_->subgroup(ranks);
    if (!made) return made;
    return std::make_unique<Miscounting>(std::move(*made), extra_);
  }
  SentBytes sent_bytes() const override {
    SentBytes bytes = inner_->sent_bytes();
    bytes.inter += more_;
    return bytes;
  }

 private:
  std::unique_ptr<Group> inner_;
  const Extra extra_;
  std::atomic<std::uint64_t> more_{0};
};

std::uint64_t nothing(const Collective& /*call*/) { return 0; }

/// Every call for `tensor` a second time.
Extra twice(std::string tensor) {
  return [tensor = std::move(tensor)](const Collective& call) {
    return call.tensor.starts_with(tensor) ? std::uint64_t{call.in.size()} : 0;
  };
}

struct Heard {
  std::vector<std::string> lines = {};  ///< of rank 0
  std::vector<Status> failures = {};    ///< of rank 0's steps
};

/// Six steps of the small model, each tensor in a message of its own.
/// `make_extra` is called once a rank.
Heard listen(const std::function<Extra()>& make_extra, EngineOptions options) {
  auto world = comm::make_local_world({.topology = {.machines = 2, .workers_per_machine = 2}});
  Heard heard;
  std::vector<std::thread> threads;
  options.fusion = false;
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank, mine = options]() mutable {
      if (rank == 0) {
        mine.log = [&](std::string_view line) { heard.lines.emplace_back(line); };
      }
      auto engine = Engine::make(
          {.group = std::make_unique<Miscounting>(std::move((*world)[rank]), make_extra()),
           .machines = 2,
           .workers_per_machine = 2},
          test::small_model(), mine);
      ASSERT_TRUE(engine.has_value()) << engine.error().message();
      for (unsigned step = 0; step < 6; ++step) {
        Gradients gradients = test::gradients_of(rank, step);
        const auto done = test::run_step(**engine, gradients);
        if (!done && rank == 0) heard.failures.push_back(done.error());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return heard;
}

TEST(Audit, AWarningNamesTheTensorOnce) {
  for (const char* tensor : {"conv.weight", "embedding", "fc.bias"}) {
    const Heard heard =
        listen([&] { return twice(tensor); }, {.codec = "efsign", .least_elements = 100});
    EXPECT_TRUE(heard.failures.empty());
    ASSERT_EQ(heard.lines.size(), 1U) << heard.lines.front();
    EXPECT_NE(heard.lines[0].find("audit of step"), std::string::npos) << heard.lines[0];
    EXPECT_NE(heard.lines[0].find(std::string("message of ") + tensor), std::string::npos)
        << heard.lines[0];
  }
}

TEST(Audit, StrictIsAnErrorAtOnceThatNamesTheTensor) {
  for (const bool pipelining : {true, false}) {
    const Heard heard = listen([] { return twice("embedding"); },
                               {.codec = "acpsgd:2", .pipelining = pipelining, .strict = true});
    ASSERT_EQ(heard.failures.size(), 6U);
    for (const Status& status : heard.failures) {
      EXPECT_EQ(status.code(), Code::kInternal);
      EXPECT_NE(status.message().find("message of embedding, which promised"), std::string::npos)
          << status.message();
    }
    EXPECT_NE(heard.failures[0].message().find("audit of step 0"), std::string::npos);
  }
}

TEST(Audit, HonestCountsAreNotMentioned) {
  for (const bool strict : {true, false}) {
    const Heard heard = listen([] { return nothing; }, {.codec = "topk:0.05", .strict = strict});
    EXPECT_TRUE(heard.failures.empty());
    EXPECT_TRUE(heard.lines.empty()) << heard.lines.front();
  }
}

TEST(Audit, WhatDoesNotComeAgainIsStillTold) {
  // The first call for one tensor alone.
  const auto once = [] {
    const auto calls = std::make_shared<std::atomic<unsigned>>(0);
    return [calls](const Collective& call) -> std::uint64_t {
      return call.tensor.starts_with("fc.weight") && ++*calls == 1 ? 1'000'000 : 0;
    };
  };
  const Heard heard = listen(once, {.codec = "none"});
  EXPECT_TRUE(heard.failures.empty());
  ASSERT_EQ(heard.lines.size(), 1U);
  EXPECT_NE(heard.lines[0].find("audit of step 0"), std::string::npos) << heard.lines[0];
  EXPECT_NE(heard.lines[0].find("steps after it sent what was promised"), std::string::npos)
      << heard.lines[0];
}

TEST(Audit, BytesThatBelongToNoMessageAreToldAsSuch) {
  engine::ByteAudit audit(/*strict=*/false);
  const engine::Program program;
  const engine::StepReport off{.sent = {.inter = 150}, .promised = {.inter = 100}};
  std::vector<std::string> lines;
  for (std::uint64_t step = 0; step < 5; ++step) {
    // Two steps after the first that was off, messages are counted; none of them is off.
    EXPECT_EQ(audit.counts_messages(), step == 1 || step == 2) << step;
    const auto line = audit.judge(
        {.step = step, .running = "efsign", .backend = "local", .program = program, .report = off});
    ASSERT_TRUE(line.has_value());
    if (*line) lines.push_back(**line);
  }
  EXPECT_EQ(lines, std::vector<std::string>{
                       "audit of step 2: efsign promised 100 bytes, the local backend counted 150; "
                       "every message sent what it promised"});
}

}  // namespace
}  // namespace gradpress
