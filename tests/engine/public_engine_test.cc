#include <gradpress/engine.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>

#include "comm/local/local.h"
#include "engine/engine_workers.h"

namespace gradpress {
namespace {

using test::alike;
using test::gradients_of;
using test::kWorkers;
using test::Ledger;
using test::on_every_rank;
using Gradients = test::EngineGradients;

std::vector<EngineTensor> tensors() { return test::small_model(); }

class EveryCodec : public testing::TestWithParam<const char*> {};

TEST_P(EveryCodec, NothingIsLostWhateverCodecsFollowEachOther) {
  Ledger ledger;
  EngineOptions options{.codec = GetParam(), .feedback = true, .least_elements = 30};
  const auto failures = on_every_rank(alike(options), [&](unsigned rank, Engine& engine) {
    unsigned step = 0;
    for (const char* codec : {GetParam(), "topk:0.05", GetParam(), "int8", "none"}) {
      ASSERT_TRUE(engine.set_codec(codec).is_ok());
      for (unsigned turn = 0; turn < 3; ++turn, ++step) {
        Gradients gradients = gradients_of(rank, step);
        for (std::size_t i = 0; i < gradients.size(); ++i) ledger.add(i, gradients[i], -1.0);
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          ASSERT_TRUE(engine.ready(i, gradients[i]).is_ok());
        }
        const auto done = engine.wait();
        ASSERT_TRUE(done.has_value()) << done.error().message();
        EXPECT_TRUE(done->finite);
        EXPECT_EQ(done->step, step);
        EXPECT_EQ(done->sent.inter, done->promised.inter);
        EXPECT_EQ(done->sent.intra, done->promised.intra);
        // All hold the same: each rank's copy stands for its own gradient.
        for (std::size_t i = 0; i < gradients.size(); ++i) ledger.add(i, gradients[i], 1.0);
      }
    }
    for (std::size_t i = 0; i < tensors().size(); ++i) {
      std::vector<float> residual(tensors()[i].shape.elements());
      engine.copy_residual(i, residual);
      ledger.add(i, residual, 1.0);
    }
  });
  for (const Status& status : failures) EXPECT_TRUE(status.is_ok()) << status.message();
  // 15 steps of sums of a few units each, in single precision; all-reduce rounds sums of halves
  // once more, and nobody keeps what that loses.
  const std::string_view codec = GetParam();
  const bool sums_bfloats = codec == "randomk:0.1:value=bf16";  // 3 bits fewer
  EXPECT_LT(ledger.worst(), sums_bfloats ? 0.16 : codec == "fp16" ? 2e-2 : 2e-3);
}

INSTANTIATE_TEST_SUITE_P(Engine, EveryCodec,
                         testing::Values("fp16", "efsign", "topk:0.01", "randomk:0.1", "acpsgd:4",
                                         "powersgd:2", "dgc:0.01", "redsync:0.01",
                                         "topk:0.05:index=rice:value=fp16",
                                         "dgc:0.05:index=rice:value=2bit", "randomk:0.1:value=bf16",
                                         "randomk:0.1:value=2bit"),
                         [](const auto& param) {
                           std::string name;
                           for (const char c : std::string(param.param)) {
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

TEST(Engine, RanksThatDisagreeAreToldBeforeTheFirstStep) {
  auto options = alike({.codec = "topk:0.01"});
  options[2].codec = "topk:0.02";
  const auto failures = on_every_rank(options, [](unsigned, Engine&) { FAIL(); });
  for (const Status& status : failures) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find("topk"), std::string::npos) << status.message();
  }
}

TEST(Engine, SaysWhenCompressionIsNotInEffect) {
  std::mutex mutex;
  std::vector<std::string> lines;
  EngineOptions options{.codec = "topk:0.01", .least_elements = 1'000'000};
  options.log = [&](std::string_view line) {
    const std::scoped_lock lock(mutex);
    lines.emplace_back(line);
  };
  const auto failures = on_every_rank(alike(options), [](unsigned, Engine&) {});
  for (const Status& status : failures) EXPECT_TRUE(status.is_ok()) << status.message();
  ASSERT_EQ(lines.size(), kWorkers);
  EXPECT_NE(lines.front().find("not in effect"), std::string::npos) << lines.front();
}

TEST(Engine, PowerSgdIsNotUsedWhereItsTwoRoundsSendNoFewerBytes) {
  // The first round of fc.weight, 30 x 40 floats, is half of its 40 x 60; both together are 1.25 of
  // it.
  const EngineOptions options{.codec = "powersgd:30", .least_elements = 1};
  const auto failures = on_every_rank(alike(options), [](unsigned rank, Engine& engine) {
    Gradients gradients = gradients_of(rank, 0);
    const auto done = test::run_step(engine, gradients);
    ASSERT_TRUE(done.has_value()) << done.error().message();
    const std::string summary = engine.summary();
    EXPECT_NE(summary.find("3 tensors travel raw: powersgd:30 would send no fewer bytes"),
              std::string::npos)
        << summary;
    ASSERT_TRUE(engine.set_codec("none").is_ok());
    const auto raw = test::run_step(engine, gradients);
    ASSERT_TRUE(raw.has_value()) << raw.error().message();
    EXPECT_LE(done->sent.inter, raw->sent.inter);
  });
  for (const Status& status : failures) EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST(Engine, NanOnOneRankIsKnownToAllAndLeavesNoTrace) {
  const auto failures =
      on_every_rank(alike({.codec = "topk:0.05"}), [](unsigned rank, Engine& engine) {
        for (unsigned step = 0; step < 3; ++step) {
          Gradients gradients = gradients_of(rank, step);
          if (step == 1 && rank == 3) gradients[0][7] = std::numeric_limits<float>::infinity();
          for (std::size_t i = 0; i < gradients.size(); ++i) {
            ASSERT_TRUE(engine.ready(i, gradients[i]).is_ok());
          }
          const auto done = engine.wait();
          ASSERT_TRUE(done.has_value()) << done.error().message();
          EXPECT_EQ(done->finite, step != 1) << "rank " << rank;
          if (step == 2) {
            for (const float value : gradients[0]) ASSERT_TRUE(std::isfinite(value));
          }
        }
      });
  for (const Status& status : failures) EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST(Engine, WrongTensorsAreRefused) {
  auto world = comm::make_local_world({});
  EXPECT_EQ(Engine::make({}, tensors(), {}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Engine::make({.group = std::move(world->front())},
                         {{.name = "w", .shape = Shape{3}}, {.name = "w", .shape = Shape{4}}}, {})
                .error()
                .code(),
            Code::kInvalidArgument);
}

TEST(Engine, TheFirstRuleThatFitsATensorDecides) {
  const EngineOptions options{.codec = "efsign",
                              .rules = {{.pattern = "conv.*", .codec = "topk:0.1"},
                                        {.pattern = "*.weight", .codec = "acpsgd:2"},
                                        {.pattern = "embed*", .codec = "none"}}};
  const auto failures = on_every_rank(alike(options), [](unsigned, Engine& engine) {
    const Plan plan = engine.plan();
    EXPECT_EQ(plan.tensors[0].codec, "acpsgd:2");
    EXPECT_EQ(plan.tensors[2].codec, "topk:0.1");
    EXPECT_EQ(plan.tensors[4].codec, "none");
    ASSERT_TRUE(engine.set_codec("int8").is_ok());
    EXPECT_EQ(engine.plan().tensors[2].codec, "topk:0.1") << "rules stay in force";
    EXPECT_EQ(engine.running(), "int8");
  });
  test::expect_all_ok(failures);
}

TEST(Engine, SpansNameLanesActionsAndTensors) {
  EngineOptions options{.codec = "topk:0.05"};
  options.record_spans = true;
  const auto failures = on_every_rank(alike(options), [](unsigned rank, Engine& engine) {
    EXPECT_TRUE(engine.spans().empty());
    Gradients gradients = gradients_of(rank, 0);
    ASSERT_TRUE(test::run_step(engine, gradients).has_value());
    bool gathered = false;
    for (const EngineSpan& span : engine.spans()) {
      EXPECT_LE(span.start_us, span.end_us);
      EXPECT_FALSE(span.tensor.empty());
      if (span.action != "allgather@flat") continue;
      gathered = true;
      EXPECT_EQ(span.lane, "inter");
      EXPECT_EQ(span.tensor, "fc.weight");
    }
    EXPECT_TRUE(gathered);
  });
  test::expect_all_ok(failures);
}

TEST(Engine, WorkIsAnnouncedAndDoneByProgressWhileGradientsAreAwaited) {
  std::array<EngineOptions, kWorkers> options = alike({.codec = "acpsgd:2"});
  std::array<std::atomic<unsigned>, kWorkers> announced{};
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    options[rank].fusion = false;
    options[rank].record_spans = true;
    options[rank].on_work = [&counter = announced[rank]] {
      ++counter;
      counter.notify_all();
    };
  }
  test::History with(1);
  const auto failures = on_every_rank(options, [&](unsigned rank, Engine& engine) {
    EXPECT_TRUE(engine.progress().is_ok()) << "between steps there is nothing to do";
    Gradients gradients = gradients_of(rank, 0);
    // The first tensor is decoded before the others come: nothing but progress() does it.
    ASSERT_TRUE(engine.ready(0, gradients[0]).is_ok());
    announced[rank].wait(0);
    EXPECT_EQ(gradients[0], gradients_of(rank, 0)[0]);
    ASSERT_TRUE(engine.progress().is_ok());
    EXPECT_NE(gradients[0], gradients_of(rank, 0)[0]);
    for (std::size_t i = 1; i < gradients.size(); ++i) {
      ASSERT_TRUE(engine.ready(i, gradients[i]).is_ok());
    }
    ASSERT_TRUE(engine.wait().has_value());
    with.steps[rank][0] = gradients;
  });
  test::expect_all_ok(failures);
  with.expect_one_gradient();
}

TEST(Engine, ARankThatCannotRunAPlanTellsTheOthers) {
  const auto failures = on_every_rank(alike({}), [](unsigned rank, Engine& engine) {
    Plan plan = engine.plan();
    if (rank == 1) plan.tensors[0].option = "allgather@nowhere";
    const Status status = engine.set_plan(plan);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find("nowhere"), std::string::npos) << status.message();
    // The old plan goes on.
    Gradients gradients = gradients_of(rank, 0);
    EXPECT_TRUE(test::run_step(engine, gradients).has_value());
  });
  test::expect_all_ok(failures);
}

TEST(Engine, AFailureOfOneEngineIsNoneOfAnother) {
  constexpr comm::Topology kTopology{.machines = 2, .workers_per_machine = 2};
  // Who does not talk to the lost rank itself hears of it when this has passed.
  auto one =
      comm::make_local_world({.topology = kTopology, .timeout = std::chrono::milliseconds(500)});
  auto other = comm::make_local_world({.topology = kTopology});
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] {
      EngineOptions throws{.codec = "none"};
      throws.log = [](std::string_view) { throw std::runtime_error("a log that throws"); };
      Gradients lost = gradients_of(rank, 0);  // first: after a failure they belong to the engine
      auto doomed =
          Engine::make({.group = std::move((*one)[rank]), .machines = 2, .workers_per_machine = 2},
                       tensors(), throws);
      auto lives = Engine::make(
          {.group = std::move((*other)[rank]), .machines = 2, .workers_per_machine = 2}, tensors(),
          {.codec = "efsign"});
      ASSERT_TRUE(doomed && lives);
      EXPECT_EQ((*doomed)->set_codec("topk:0.5:").code(), Code::kInvalidArgument);
      if (rank == 3) {
        doomed->reset();
      } else {
        for (std::size_t i = 0; i < lost.size(); ++i) (void)(*doomed)->ready(i, lost[i]);
        const auto ended = (*doomed)->wait();
        ASSERT_FALSE(ended.has_value());
        EXPECT_EQ(ended.error().code(), Code::kPeerLost) << ended.error().to_string();
      }
      for (unsigned step = 0; step < 3; ++step) {
        Gradients gradients = gradients_of(rank, step);
        const auto done = test::run_step(**lives, gradients);
        ASSERT_TRUE(done.has_value()) << done.error().message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradpress
