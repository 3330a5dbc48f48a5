#include "engine/runtime.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "comm/local/local.h"
#include "support/workers.h"

namespace gradpress::engine {
namespace {

constexpr comm::Topology kTwoByTwo{.machines = 2, .workers_per_machine = 2};
using Gradients = std::vector<std::vector<float>>;

/// One option of every sort, codecs on both places, buckets of one to three tensors.
std::vector<sync::MessageSpec> mixed_messages() {
  struct Row {
    const char* option;
    const char* codec;
    std::vector<Shape> shapes;
  };
  const std::vector<Row> rows{
      {"allreduce@flat", "none", {Shape{33}}},
      {"reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@host > allgather@intra2",
       "efsign",
       {Shape{40, 3}, Shape{7}}},
      {"Comp@host > alltoall@flat > Decomp@host > Comp@device > allgather@flat > Decomp@device",
       "topk:0.1",
       {Shape{257}}},
      {"reduce-scatter@intra1 > allreduce@inter > allgather@intra2",
       "none",
       {Shape{5}, Shape{1}, Shape{64, 2}}},
      {"Comp@device > allreduce@flat > Decomp@device", "acpsgd:2", {Shape{12, 9}, Shape{20, 4}}},
      {"Comp@host > allgather@flat > Decomp@device", "int8", {Shape{130}}},
  };
  std::vector<sync::MessageSpec> messages;
  std::uint64_t tensor = 0;
  for (const Row& row : rows) {
    sync::MessageSpec message{.option = *plan::parse_option(row.option), .seed = 7};
    for (const Shape& shape : row.shapes) {
      message.members.push_back({.name = std::string("w").append(std::to_string(tensor)),
                                 .shape = shape,
                                 .tensor = tensor,
                                 .codec = row.codec});
      ++tensor;
    }
    messages.push_back(message);
  }
  return messages;
}

Program mixed_program() {
  Program program{.messages = mixed_messages()};
  program.order = natural_order(program.messages, kTwoByTwo);
  return program;
}

Gradients make_gradients(const Program& program, unsigned rank, std::uint64_t step) {
  Gradients gradients;
  std::mt19937 random(static_cast<unsigned>(1000 * step + rank));
  std::normal_distribution<float> normal;
  for (const sync::MessageSpec& message : program.messages) {
    for (const sync::Member& member : message.members) {
      std::vector<float>& gradient = gradients.emplace_back(member.shape.elements());
      for (float& value : gradient) value = normal(random);
    }
  }
  return gradients;
}

/// What every rank holds after each step.
using History = std::vector<std::vector<Gradients>>;

struct Played {
  History history = {};
  std::vector<StepReport> reports = {};  ///< of rank 0
  std::vector<Status> failures = {};
};

/// Ranks give their tensors in different orders.
Played run_steps(const RuntimeOptions& options, unsigned steps) {
  auto world = comm::make_local_world({.topology = kTwoByTwo});
  const unsigned workers = kTwoByTwo.workers();
  Played run{.history = History(workers, std::vector<Gradients>(steps))};
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank, end = std::move((*world)[rank])]() mutable {
      const auto complain = [&](const Status& status) {
        const std::scoped_lock lock(mutex);
        run.failures.push_back(status);
      };
      auto fabric = sync::Fabric::make(std::move(end), kTwoByTwo);
      if (!fabric) return complain(fabric.error());
      auto runtime = Runtime::make(mixed_program(), *fabric, options, steady_clock());
      if (!runtime) return complain(runtime.error());
      std::mt19937 random(rank);
      for (unsigned step = 0; step < steps; ++step) {
        Gradients& gradients = run.history[rank][step];
        gradients = make_gradients((*runtime)->program(), rank, step);
        std::vector<std::uint32_t> order(gradients.size());
        std::iota(order.begin(), order.end(), 0U);
        std::ranges::shuffle(order, random);
        if (Status status = (*runtime)->begin(step); !status) return complain(status);
        for (const std::uint32_t tensor : order) {
          if (Status status = (*runtime)->ready(tensor, gradients[tensor]); !status) {
            return complain(status);
          }
        }
        const auto report = (*runtime)->wait();
        if (!report) return complain(report.error());
        if (rank == 0) run.reports.push_back(*report);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return run;
}

bool same_bits(const Gradients& a, const Gradients& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return std::ranges::equal(
        x, y, {}, [](float v) { return std::bit_cast<std::uint32_t>(v); },
        [](float v) { return std::bit_cast<std::uint32_t>(v); });
  });
}

TEST(Runtime, EveryRankHoldsTheSameBitsWhateverTheOrderOfReadiness) {
  const Played run = run_steps({}, 5);
  ASSERT_TRUE(run.failures.empty()) << run.failures.front().message();
  for (unsigned rank = 1; rank < kTwoByTwo.workers(); ++rank) {
    for (unsigned step = 0; step < 5; ++step) {
      EXPECT_TRUE(same_bits(run.history[0][step], run.history[rank][step]))
          << "rank " << rank << " step " << step;
    }
  }
}

TEST(Runtime, PipeliningChangesTheTimesAlone) {
  const Played pipelined = run_steps({}, 4);
  const Played serial = run_steps({.pipelining = false}, 4);
  ASSERT_TRUE(pipelined.failures.empty()) << pipelined.failures.front().message();
  ASSERT_TRUE(serial.failures.empty()) << serial.failures.front().message();
  for (unsigned step = 0; step < 4; ++step) {
    EXPECT_TRUE(same_bits(pipelined.history[0][step], serial.history[0][step])) << step;
  }
}

TEST(Runtime, BytesAreThosePromised) {
  const Played run = run_steps({}, 4);
  ASSERT_EQ(run.reports.size(), 4U);
  for (const StepReport& report : run.reports) {
    EXPECT_EQ(report.sent.intra, report.promised.intra);
    EXPECT_EQ(report.sent.inter, report.promised.inter);
    EXPECT_GT(report.sent.inter, 0U);
    EXPECT_EQ(report.outcome, sync::Outcome::kDone);
    EXPECT_EQ(report.unused, 0U);
  }
}

/// To be declared before the runtime: after a failure its lanes may still use them.
Gradients single_gradients() { return make_gradients({.messages = mixed_messages()}, 0, 0); }

/// One worker, one machine: the whole life of a runtime without threads in the test.
struct Single {
  explicit Single(const RuntimeOptions& options) {
    auto world = comm::make_local_world({});
    fabric = std::make_unique<sync::Fabric>(
        *sync::Fabric::make(std::move(world->front()), {.machines = 1, .workers_per_machine = 1}));
    Program program{.messages = mixed_messages()};
    auto made = Runtime::make(std::move(program), *fabric, options, steady_clock());
    EXPECT_TRUE(made.has_value()) << made.error().message();
    if (made) runtime = std::move(*made);
  }
  std::unique_ptr<sync::Fabric> fabric;
  std::unique_ptr<Runtime> runtime;
};

TEST(Runtime, OneWorkerNeedsNoTurn) {
  Gradients gradients = single_gradients();
  Single single({});
  const std::vector<float> raw = gradients[0];
  ASSERT_TRUE(single.runtime->begin(0).is_ok());
  for (std::uint32_t i = 0; i < gradients.size(); ++i) {
    ASSERT_TRUE(single.runtime->ready(i, gradients[i]).is_ok());
  }
  const auto report = single.runtime->wait();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_EQ(gradients[0], raw);
  EXPECT_EQ(report->sent.inter + report->sent.intra, 0U);
}

TEST(Runtime, AMissingTensorIsNamed) {
  Gradients gradients = single_gradients();
  Single single({});
  ASSERT_TRUE(single.runtime->begin(0).is_ok());
  for (std::uint32_t i = 0; i < gradients.size(); ++i) {
    if (i != 4) {
      ASSERT_TRUE(single.runtime->ready(i, gradients[i]).is_ok());
    }
  }
  const auto report = single.runtime->wait();
  ASSERT_FALSE(report.has_value());
  EXPECT_NE(report.error().message().find("w4"), std::string::npos) << report.error().message();
}

TEST(Runtime, AnUnusedTensorCountsAsZeroWhereAllowed) {
  Gradients gradients = single_gradients();
  Single single({.allow_unused = true});
  ASSERT_TRUE(single.runtime->begin(0).is_ok());
  for (std::uint32_t i = 1; i < gradients.size(); ++i) {
    ASSERT_TRUE(single.runtime->ready(i, gradients[i]).is_ok());
  }
  const auto report = single.runtime->wait();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_EQ(report->unused, 1U);
}

TEST(Runtime, WrongCallsAreToldAndDoNoHarm) {
  Gradients gradients = single_gradients();
  Single single({});
  Runtime& runtime = *single.runtime;
  EXPECT_EQ(runtime.ready(0, gradients[0]).code(), Code::kInvalidArgument);
  EXPECT_FALSE(runtime.wait().has_value());
  ASSERT_TRUE(runtime.begin(0).is_ok());
  EXPECT_EQ(runtime.begin(1).code(), Code::kInvalidArgument);
  EXPECT_EQ(runtime.ready(999, gradients[0]).code(), Code::kInvalidArgument);
  EXPECT_EQ(runtime.ready(0, gradients[1]).code(), Code::kInvalidArgument);
  ASSERT_TRUE(runtime.ready(0, gradients[0]).is_ok());
  EXPECT_EQ(runtime.ready(0, gradients[0]).code(), Code::kInvalidArgument);
  for (std::uint32_t i = 1; i < gradients.size(); ++i) {
    ASSERT_TRUE(runtime.ready(i, gradients[i]).is_ok());
  }
  EXPECT_TRUE(runtime.wait().has_value());
}

TEST(Runtime, SpansCoverEveryStageOfEveryMessage) {
  const Played run = run_steps({.record_spans = true}, 2);
  ASSERT_TRUE(run.failures.empty()) << run.failures.front().message();
  // The views end with their runtime; their number is what can be asked here.
  std::size_t wanted = 0;
  for (const sync::MessageSpec& message : mixed_messages()) {
    wanted += message.option.actions().size();
    // The first encode is a span per member.
    if (message.option.actions().front().kind == plan::ActionKind::kComp) {
      wanted += message.members.size() - 1;
    }
  }
  for (const StepReport& report : run.reports) EXPECT_EQ(report.spans.size(), wanted);
}

TEST(Runtime, NanOnOneRankIsEveryRanksOutcome) {
  Gradients gradients = single_gradients();
  Single single({});
  gradients[3][5] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_TRUE(single.runtime->begin(0).is_ok());
  for (std::uint32_t i = 0; i < gradients.size(); ++i) {
    ASSERT_TRUE(single.runtime->ready(i, gradients[i]).is_ok());
  }
  const auto report = single.runtime->wait();
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_EQ(report->outcome, sync::Outcome::kNonFinite);
}

TEST(Runtime, ALostPeerEndsTheWait) {
  auto world = comm::make_local_world({.topology = kTwoByTwo});
  std::vector<Status> ends(kTwoByTwo.workers());
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < kTwoByTwo.workers(); ++rank) {
    threads.emplace_back([&, rank, end = std::move((*world)[rank])]() mutable {
      Gradients gradients;  // first: after a failure they belong to the groups
      auto fabric = sync::Fabric::make(std::move(end), kTwoByTwo);
      auto runtime = Runtime::make(mixed_program(), *fabric, {}, steady_clock());
      for (unsigned step = 0; step < 50; ++step) {
        if (rank == 2 && step == 3) return;
        gradients = make_gradients((*runtime)->program(), rank, step);
        ends[rank] = (*runtime)->begin(step);
        for (std::uint32_t i = 0; i < gradients.size() && ends[rank]; ++i) {
          ends[rank] = (*runtime)->ready(i, gradients[i]);
        }
        if (ends[rank]) {
          const auto report = (*runtime)->wait();
          if (!report) ends[rank] = report.error();
        }
        if (!ends[rank]) break;
      }
      // First the groups, then the buffers they may still write to.
      const auto messages = (*runtime)->dissolve();
      const sync::Fabric last = std::move(*fabric);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (unsigned rank = 0; rank < kTwoByTwo.workers(); ++rank) {
    if (rank == 2) continue;
    EXPECT_EQ(ends[rank].code(), Code::kPeerLost) << ends[rank].to_string();
  }
}

}  // namespace
}  // namespace gradpress::engine
