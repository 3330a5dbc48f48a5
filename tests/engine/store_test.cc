// Messages take turns in little memory: how much, in which order, and that nothing stops over it.
#include <algorithm>
#include <atomic>
#include <set>

#include "engine/engine_workers.h"
#include "engine/store_plan.h"

namespace gradpress {
namespace {

using engine::kNoMessage;
using engine::kNoStore;
using engine::Program;
using Gradients = test::EngineGradients;

constexpr comm::Topology kTwoByTwo{.machines = 2, .workers_per_machine = 2};
constexpr const char* kFlat = "Comp@device > allgather@flat > Decomp@device";
constexpr const char* kHierarchical =
    "reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@host > allgather@intra2";

Program program_of(const std::string& option, unsigned messages) {
  Program program;
  for (unsigned i = 0; i < messages; ++i) {
    program.messages.push_back({.members = {{.name = std::string("w").append(std::to_string(i)),
                                             .shape = Shape{64},
                                             .tensor = i,
                                             .codec = "efsign"}},
                                .option = *plan::parse_option(option)});
  }
  program.order = engine::natural_order(program.messages, kTwoByTwo);
  return program;
}

TEST(StorePlan, TwoForEachLaneThatMessagesPass) {
  // Device and inter; device, host, intra and inter; inter alone.
  EXPECT_EQ(plan_stores(program_of(kFlat, 50), kTwoByTwo, false).stores, 4U);
  EXPECT_EQ(plan_stores(program_of(kHierarchical, 50), kTwoByTwo, false).stores, 8U);
  EXPECT_EQ(
      plan_stores(program_of("reduce-scatter@flat > allgather@flat", 50), kTwoByTwo, false).stores,
      2U);
  EXPECT_EQ(plan_stores(program_of(kFlat, 3), kTwoByTwo, false).stores, 3U);
  EXPECT_EQ(plan_stores(program_of(kFlat, 50), kTwoByTwo, true).stores, 1U);
}

TEST(StorePlan, RawMessagesOfOneCollectiveNeedNone) {
  const auto plan = plan_stores(program_of("allreduce@flat", 9), kTwoByTwo, false);
  EXPECT_EQ(plan.stores, 0U);
  for (const std::uint32_t store : plan.of_message) EXPECT_EQ(store, kNoStore);
}

TEST(StorePlan, MessagesFollowEachOtherInTheOrderOfTheLink) {
  Program program = program_of(kFlat, 10);
  std::ranges::reverse(program.order[1]);
  const auto plan = plan_stores(program, kTwoByTwo, false);
  ASSERT_EQ(plan.stores, 4U);
  for (std::uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(plan.before[i], i + 4 < 10 ? i + 4 : kNoMessage) << i;
    EXPECT_EQ(plan.of_message[i], plan.of_message[(i + 4) % 8]) << "by turns";
  }
}

TEST(StorePlan, MessagesThatAreUnderWayTogetherAllHaveMemory) {
  // All first halves before any second half: every message is under way when the last one begins.
  Program program = program_of("reduce-scatter@flat > allgather@flat", 12);
  auto& order = program.order[1];
  std::ranges::stable_sort(order, {}, &engine::Turn::stage);
  ASSERT_TRUE(check_order(program, kTwoByTwo).is_ok());
  EXPECT_EQ(plan_stores(program, kTwoByTwo, false).stores, 12U);
  // In blocks of five: five together.
  std::ranges::stable_sort(
      order, {}, [](const engine::Turn& turn) { return std::pair(turn.message / 5, turn.stage); });
  EXPECT_EQ(plan_stores(program, kTwoByTwo, false).stores, 5U);
}

std::vector<EngineTensor> equal_tensors(unsigned count) {
  std::vector<EngineTensor> tensors;
  for (unsigned i = 0; i < count; ++i) {
    tensors.push_back(
        {.name = std::string("w").append(std::to_string(i)), .shape = Shape{100, 60}});
  }
  return tensors;
}

Plan plan_of_singles(const std::vector<EngineTensor>& tensors, const std::string& codec,
                     const std::string& option) {
  Plan plan{.tree = "extended", .machines = 2, .workers_per_machine = 2};
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    plan.tensors.push_back({.name = tensors[i].name,
                            .shape = tensors[i].shape,
                            .codec = codec,
                            .option = option,
                            .bucket = i,
                            .bucket_q = i});
  }
  return plan;
}

struct Ran {
  std::uint64_t bytes = 0;  ///< the most of any rank
  std::vector<std::vector<Gradients>> history = std::vector<std::vector<Gradients>>(4);
};

/// Three steps; ranks hand their tensors over in different orders.
Ran run(const std::vector<EngineTensor>& tensors, const EngineOptions& options,
        const comm::Link& link = {}) {
  auto world = comm::make_local_world({.topology = kTwoByTwo, .inter = link});
  Ran ran;
  std::atomic<std::uint64_t> bytes{0};
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      auto engine = Engine::make(
          {.group = std::move((*world)[rank]), .machines = 2, .workers_per_machine = 2}, tensors,
          options);
      ASSERT_TRUE(engine.has_value()) << engine.error().message();
      std::mt19937 random(rank);
      std::normal_distribution<float> normal;
      std::vector<std::size_t> order(tensors.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      for (unsigned step = 0; step < 3; ++step) {
        Gradients gradients;
        for (const EngineTensor& tensor : tensors) {
          for (float& value : gradients.emplace_back(tensor.shape.elements())) {
            value = normal(random);
          }
        }
        std::mt19937 shuffler(10 * step + rank);
        std::ranges::shuffle(order, shuffler);
        for (const std::size_t i : order) ASSERT_TRUE((*engine)->ready(i, gradients[i]).is_ok());
        const auto done = (*engine)->wait();
        ASSERT_TRUE(done.has_value()) << done.error().message();
        EXPECT_EQ(done->sent.inter, done->promised.inter);
        ran.history[rank].push_back(std::move(gradients));
      }
      const std::uint64_t mine = (*engine)->buffer_bytes();
      std::uint64_t most = bytes.load();
      while (mine > most && !bytes.compare_exchange_weak(most, mine)) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ran.bytes = bytes.load();
  return ran;
}

TEST(EngineMemory, FiftyMessagesNeedThatOfTwoPerLane) {
  for (const char* codec : {"efsign", "topk:0.1", "acpsgd:4", "int8"}) {
    const EngineOptions options{.codec = codec, .fusion = false};
    const std::uint64_t one = run(equal_tensors(1), options).bytes;
    ASSERT_GT(one, 0U);
    // The device, which encodes and decodes, and the link between machines.
    EXPECT_EQ(run(equal_tensors(50), options).bytes, 2 * 2 * one) << codec;
  }
}

TEST(EngineMemory, ALargeMessageCountsOnce) {
  std::vector<EngineTensor> tensors = equal_tensors(50);
  const std::uint64_t small = run(equal_tensors(1), {.codec = "efsign", .fusion = false}).bytes;
  tensors[20].shape = Shape{1000, 60};
  const std::uint64_t large = run({tensors[20]}, {.codec = "efsign", .fusion = false}).bytes;
  EXPECT_EQ(run(tensors, {.codec = "efsign", .fusion = false}).bytes, large + 3 * small);
}

TEST(EngineMemory, OfAcpSgdsTwoProgramsIsShared) {
  Plan plan = plan_of_singles(equal_tensors(12), "acpsgd:4",
                              "Comp@device > allreduce@flat > Decomp@device");
  plan.alternates = true;
  const std::uint64_t singles = run(equal_tensors(12), {.plan = plan}).bytes;
  // The second program's buckets are pairs: its messages are twice as large.
  for (std::uint32_t i = 0; i < 12; ++i) plan.tensors[i].bucket_q = i / 2;
  const std::uint64_t pairs = run(equal_tensors(12), {.plan = plan}).bytes;
  EXPECT_GT(pairs, singles);
  EXPECT_LE(pairs, 2 * singles);
}

/// In one store after the other the bits are those of one message at a time.
TEST(EngineMemory, TurnsInMemoryChangeNoBit) {
  struct Case {
    const char* codec;
    const char* option;
  };
  const std::vector<Case> cases = {
      {"topk:0.1", kFlat},
      {"efsign", kHierarchical},
      {"acpsgd:4", "Comp@device > allreduce@flat > Decomp@device"},
      {"powersgd:2", "Comp@device > allreduce@flat > Comp@device > allreduce@flat > Decomp@device"},
      {"int8", "Comp@host > allgather@flat > Decomp@host"},
      {"topk:0.1",
       "Comp@host > alltoall@flat > Decomp@host > Comp@device > allgather@flat > Decomp@device"},
      {"none", "reduce-scatter@intra1 > allreduce@inter > allgather@intra2"}};
  const std::vector<EngineTensor> tensors = equal_tensors(40);
  for (const Case& what : cases) {
    EngineOptions options{.plan = plan_of_singles(tensors, what.codec, what.option)};
    // Slow enough that messages queue up for the link.
    const Ran pipelined = run(tensors, options, *comm::parse_link("400mbit,100us"));
    options.pipelining = false;
    const Ran serial = run(tensors, options);
    for (unsigned rank = 0; rank < 4; ++rank) {
      ASSERT_EQ(pipelined.history[rank].size(), 3U) << what.option;
      for (unsigned step = 0; step < 3; ++step) {
        EXPECT_TRUE(test::same_bits(pipelined.history[rank][step], serial.history[0][step]))
            << what.codec << " by " << what.option << ", rank " << rank << ", step " << step;
      }
    }
    EXPECT_LT(serial.bytes, pipelined.bytes) << what.option;
  }
}

TEST(EngineMemory, ANanInOneMessageTouchesNoneThatFollowsInItsMemory) {
  const std::vector<EngineTensor> tensors = equal_tensors(30);
  auto world = comm::make_local_world({.topology = kTwoByTwo});
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      auto engine = Engine::make(
          {.group = std::move((*world)[rank]), .machines = 2, .workers_per_machine = 2}, tensors,
          {.codec = "acpsgd:4", .fusion = false});
      ASSERT_TRUE(engine.has_value()) << engine.error().message();
      for (unsigned step = 0; step < 6; ++step) {
        Gradients gradients(tensors.size(), std::vector<float>(6000, 1.0F));
        // Its parity falls behind the others'.
        if (step == 2 && rank == 1) gradients[7][5] = std::nanf("");
        const auto done = test::run_step(**engine, gradients);
        ASSERT_TRUE(done.has_value()) << done.error().message();
        EXPECT_EQ(done->finite, step != 2);
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          EXPECT_EQ(std::isnan(gradients[i][3]), step == 2 && i == 7) << step << ", " << i;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradpress
