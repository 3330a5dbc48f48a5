// The wire audit, broken on purpose: a backend that counts too much for one tensor.
#include <atomic>

#include "engine/engine_workers.h"

namespace gradpress {
namespace {

using test::kWorkers;
using Gradients = test::EngineGradients;

/// Counts every call for `tensor` a second time.
class Overcounting final : public Group {
 public:
  Overcounting(std::unique_ptr<Group> inner, std::string tensor)
      : inner_(std::move(inner)), tensor_(std::move(tensor)) {}

  unsigned rank() const noexcept override { return inner_->rank(); }
  unsigned size() const noexcept override { return inner_->size(); }
  std::string_view backend() const noexcept override { return inner_->backend(); }
  Result<Ticket> start(const Collective& call) override {
    if (!tensor_.empty() && call.tensor.starts_with(tensor_)) more_ += call.in.size();
    return inner_->start(call);
  }
  Status wait(Ticket ticket) override { return inner_->wait(ticket); }
  bool done(Ticket ticket) const override { return inner_->done(ticket); }
  Result<std::unique_ptr<Group>> subgroup(std::span<const unsigned> ranks) override {
    auto made = inner_->subgroup(ranks);
    if (!made) return made;
    return std::make_unique<Overcounting>(std::move(*made), tensor_);
  }
  SentBytes sent_bytes() const override {
    SentBytes bytes = inner_->sent_bytes();
    bytes.inter += more_;
    return bytes;
  }

 private:
  std::unique_ptr<Group> inner_;
  const std::string tensor_;
  std::atomic<std::uint64_t> more_{0};
};

struct Heard {
  std::vector<std::string> lines = {};  ///< of rank 0
  std::vector<Status> failures = {};    ///< of rank 0's steps
};

/// Six steps of the small model, each tensor in a message of its own.
Heard listen(const std::string& tensor, EngineOptions options) {
  auto world = comm::make_local_world({.topology = {.machines = 2, .workers_per_machine = 2}});
  Heard heard;
  std::vector<std::thread> threads;
  options.fusion = false;
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank, mine = options]() mutable {
      if (rank == 0) {
        mine.log = [&](std::string_view line) { heard.lines.emplace_back(line); };
      }
      auto engine =
          Engine::make({.group = std::make_unique<Overcounting>(std::move((*world)[rank]), tensor),
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
    const Heard heard = listen(tensor, {.codec = "efsign", .least_elements = 100});
    EXPECT_TRUE(heard.failures.empty());
    ASSERT_EQ(heard.lines.size(), 1U) << heard.lines.front();
    EXPECT_NE(heard.lines[0].find("audit of step"), std::string::npos) << heard.lines[0];
    EXPECT_NE(heard.lines[0].find(std::string("message of ") + tensor), std::string::npos)
        << heard.lines[0];
  }
}

TEST(Audit, StrictIsAnErrorAtOnceThatNamesTheTensor) {
  for (const bool pipelining : {true, false}) {
    const Heard heard =
        listen("embedding", {.codec = "acpsgd:2", .pipelining = pipelining, .strict = true});
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
    const Heard heard = listen("", {.codec = "topk:0.05", .strict = strict});
    EXPECT_TRUE(heard.failures.empty());
    EXPECT_TRUE(heard.lines.empty()) << heard.lines.front();
  }
}

/// Counts a call that belongs to no message, once.
class Once final : public Group {
 public:
  explicit Once(std::unique_ptr<Group> inner) : inner_(std::move(inner)) {}
  unsigned rank() const noexcept override { return inner_->rank(); }
  unsigned size() const noexcept override { return inner_->size(); }
  std::string_view backend() const noexcept override { return inner_->backend(); }
  Result<Ticket> start(const Collective& call) override {
    if (call.tensor.starts_with("fc.weight") && ++calls_ == 2) more_ = 1'000'000;
    return inner_->start(call);
  }
  Status wait(Ticket ticket) override { return inner_->wait(ticket); }
  bool done(Ticket ticket) const override { return inner_->done(ticket); }
  Result<std::unique_ptr<Group>> subgroup(std::span<const unsigned> ranks) override {
    return inner_->subgroup(ranks);
  }
  SentBytes sent_bytes() const override {
    SentBytes bytes = inner_->sent_bytes();
    bytes.inter += more_;
    return bytes;
  }

 private:
  std::unique_ptr<Group> inner_;
  std::atomic<unsigned> calls_{0};
  std::atomic<std::uint64_t> more_{0};
};

TEST(Audit, WhatDoesNotComeAgainIsStillTold) {
  auto world = comm::make_local_world({.topology = {.machines = 2, .workers_per_machine = 1}});
  std::vector<std::string> lines;
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      EngineOptions options{.codec = "none"};
      if (rank == 0) options.log = [&](std::string_view line) { lines.emplace_back(line); };
      auto engine = Engine::make({.group = std::make_unique<Once>(std::move((*world)[rank])),
                                  .machines = 2,
                                  .workers_per_machine = 1},
                                 test::small_model(), options);
      ASSERT_TRUE(engine.has_value()) << engine.error().message();
      for (unsigned step = 0; step < 5; ++step) {
        Gradients gradients = test::gradients_of(rank, step);
        ASSERT_TRUE(test::run_step(**engine, gradients).has_value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("audit of step 1"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("steps after it sent what was promised"), std::string::npos) << lines[0];
}

}  // namespace
}  // namespace gradpress
