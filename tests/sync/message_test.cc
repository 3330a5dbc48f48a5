// Messages of several tensors through every path of the tree, and the contract's smaller promises.
#include "sync/message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "kernels/vector.h"
#include "support/gradient.h"
#include "support/group.h"
#include "sync/workers.h"

namespace gradpress::sync {
namespace {

using test::Gradients;
using test::Workers;

/// Odd, shared by fewer elements than workers, one element, a matrix.
const std::vector<Shape> kShapes = {Shape{37}, Shape{1}, Shape{3}, Shape{7, 5}};

Gradients gradients_of(const MessageSpec& spec, unsigned rank, std::uint64_t step) {
  std::vector<std::vector<float>> values;
  for (const Member& member : spec.members) {
    values.push_back(test::gradient(member.shape.elements(),
                                    test::run_seed() + 1000 * step + 10 * rank + member.tensor));
  }
  return Gradients(std::move(values));
}

/// Runs `steps` steps and compares what the ranks hold, what was sent, and what is left.
std::string complaints(Workers& workers, const MessageSpec& spec, unsigned steps, bool conserves) {
  const std::size_t count = spec.members.size();
  std::vector<std::vector<std::vector<float>>> results(workers.size());
  std::vector<std::vector<double>> sums(count);
  std::vector<std::vector<double>> left(count);
  std::vector<double> scale(count, 1e-30);
  for (std::size_t m = 0; m < count; ++m) {
    sums[m].resize(spec.members[m].shape.elements());
    left[m].resize(sums[m].size());
  }
  std::mutex mutex;
  std::string text;
  workers.run([&](Fabric& fabric) {
    auto message = Message::make(spec, fabric);
    const auto complain = [&](const std::string& what) {
      const std::lock_guard lock(mutex);
      if (text.empty()) text = "rank " + std::to_string(fabric.rank()) + ": " + what;
    };
    if (!message) return complain(message.error().to_string());
    for (std::uint64_t step = 0; step < steps; ++step) {
      Gradients gradients = gradients_of(spec, fabric.rank(), step);
      {
        const std::lock_guard lock(mutex);
        for (std::size_t m = 0; m < count; ++m) {
          for (std::size_t i = 0; i < sums[m].size(); ++i) {
            sums[m][i] += gradients[m][i];
            scale[m] = std::max(scale[m], std::fabs(static_cast<double>(gradients[m][i])));
          }
        }
      }
      const SentBytes before = fabric.sent_bytes();
      const auto outcome = (*message)->run(step, gradients.spans());
      if (!outcome) return complain(outcome.error().to_string());
      if (*outcome != Outcome::kDone) return complain("not finite");
      const SentBytes sent = fabric.sent_bytes();
      const SentBytes promised = (*message)->promised_bytes(step);
      if (sent.intra - before.intra != promised.intra ||
          sent.inter - before.inter != promised.inter) {
        return complain("sent " + std::to_string(sent.intra - before.intra) + " + " +
                        std::to_string(sent.inter - before.inter) + " B, promised " +
                        std::to_string(promised.intra) + " + " + std::to_string(promised.inter));
      }
      const std::lock_guard lock(mutex);
      results[fabric.rank()] = gradients.values();
      for (std::size_t m = 0; m < count; ++m) {
        for (std::size_t i = 0; i < sums[m].size(); ++i) left[m][i] += gradients[m][i];
      }
    }
    for (std::size_t m = 0; m < count; ++m) {
      std::vector<float> residual(sums[m].size());
      (*message)->copy_residual(m, residual);
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < residual.size(); ++i) left[m][i] += residual[i];
    }
  });
  if (!text.empty()) return text;
  for (std::size_t m = 0; m < count; ++m) {
    for (unsigned rank = 1; rank < workers.size(); ++rank) {
      if (std::memcmp(results[0][m].data(), results[rank][m].data(), 4 * results[0][m].size()) !=
          0) {
        return "member " + std::to_string(m) + ": ranks 0 and " + std::to_string(rank) + " differ";
      }
    }
    for (std::size_t i = 0; i < sums[m].size() && conserves; ++i) {
      const double tolerance = 1e-5 * scale[m] * workers.size() * steps;
      if (std::fabs(left[m][i] - sums[m][i]) > tolerance) {
        return "member " + std::to_string(m) + " element " + std::to_string(i) + ": gradients " +
               std::to_string(sums[m][i]) + ", applied and left " + std::to_string(left[m][i]);
      }
    }
  }
  return {};
}

struct Case {
  std::vector<std::string> codecs;
  bool extended = false;
  bool conserves = true;
  std::optional<bool> feedback = {};
};

void expect_no_complaints(const comm::Topology& topology, const Case& what,
                          const std::vector<Shape>& shapes = kShapes) {
  Workers workers(topology);
  for (const std::string& codec : what.codecs) {
    for (const plan::Option& option : test::device_options(what.extended)) {
      const MessageSpec spec{.members = test::members(codec, shapes),
                             .option = option,
                             .seed = 5,
                             .feedback = what.feedback};
      const std::string text = complaints(workers, spec, 2, what.conserves);
      if (text.find("invalid argument: tensor") != std::string::npos) continue;  // why_not
      EXPECT_EQ(text, "") << codec << " by " << plan::to_text(option);
      if (!text.empty()) return;  // the groups may have failed with it
    }
  }
}

TEST(Message, EveryPathKeepsRanksEqualAndLosesNothing) {
  expect_no_complaints({.machines = 2, .workers_per_machine = 2},
                       {.codecs = {"topk:0.3", "efsign"}});
}

TEST(Message, EveryPathHoldsOnThreeMachinesOfTwo) {
  expect_no_complaints({.machines = 3, .workers_per_machine = 2}, {.codecs = {"onebit"}});
}

TEST(Message, EveryPathHoldsOnOneMachine) {
  expect_no_complaints({.machines = 1, .workers_per_machine = 3}, {.codecs = {"topk:0.3"}});
}

TEST(Message, EveryPathHoldsOnMachinesOfOne) {
  expect_no_complaints({.machines = 3, .workers_per_machine = 1}, {.codecs = {"efsign"}});
}

TEST(Message, EveryPathHoldsAlone) {
  expect_no_complaints({.machines = 1, .workers_per_machine = 1}, {.codecs = {"topk:0.3"}});
}

TEST(Message, PayloadsThatCollectivesSumKeepRanksEqualAndLoseNothing) {
  expect_no_complaints({.machines = 2, .workers_per_machine = 2},
                       {.codecs = {"randomk:0.4"}, .extended = true});
  expect_no_complaints({.machines = 2, .workers_per_machine = 2},
                       {.codecs = {"fp16", "bf16"}, .extended = true, .conserves = false});
}

TEST(Message, LowRankPathsKeepRanksEqualAndLoseNothing) {
  expect_no_complaints({.machines = 2, .workers_per_machine = 3},
                       {.codecs = {"acpsgd:2", "powersgd:2"}, .extended = true},
                       {Shape{7, 5}, Shape{4, 3, 3}, Shape{1, 6}});
}

TEST(Message, EveryCodecGoesThroughAFewPaths) {
  Workers workers({.machines = 2, .workers_per_machine = 2});
  for (const std::string& codec : test::codec_texts()) {
    for (const char* const path :
         {"Comp@device > allgather@flat > Decomp@device",
          "Comp@host > alltoall@flat > Decomp@device > Comp@host > allgather@flat > Decomp@device",
          "Comp@device > alltoall@intra1 > alltoall@inter > Decomp@host > allgather@inter > "
          "allgather@intra2",
          "reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@host > "
          "allgather@intra2"}) {
      const MessageSpec spec{.members = test::members(codec, kShapes),
                             .option = test::option(path)};
      const std::string text = complaints(workers, spec, 3, false);
      if (text.find("invalid argument: tensor") != std::string::npos) continue;
      EXPECT_EQ(text, "") << codec << " by " << path;
    }
  }
}

TEST(Message, NoneIsTheGroupsOwnAllReduceBitForBit) {
  Workers workers({.machines = 2, .workers_per_machine = 3});
  workers.run([](Fabric& fabric) {
    const MessageSpec spec{.members = test::members("none", {Shape{1001}}),
                           .option = test::option("allreduce@flat")};
    auto message = Message::make(spec, fabric);
    ASSERT_TRUE(message.has_value());
    Gradients gradients = gradients_of(spec, fabric.rank(), 0);
    std::vector<float> wanted = gradients[0];
    const auto bytes = std::as_writable_bytes(std::span(wanted));
    ASSERT_TRUE(fabric.group(plan::Phase::kFlat)
                    .run({.kind = CollectiveKind::kAllReduce,
                          .type = DataType::kFloat32,
                          .in = bytes,
                          .out = bytes})
                    .is_ok());
    kernels::scale(wanted, 1.0F / 6.0F);
    ASSERT_TRUE((*message)->run(0, gradients.spans()).has_value());
    EXPECT_EQ(std::memcmp(wanted.data(), gradients[0].data(), 4 * wanted.size()), 0);
  });
}

TEST(Message, OneDimensionalTensorsTravelBesideLowRankOnes) {
  Workers workers({.machines = 2, .workers_per_machine = 2});
  for (const char* const codec : {"acpsgd:2", "powersgd:2"}) {
    for (const plan::Option& option : test::device_options(true)) {
      MessageSpec spec{.members = test::members(codec, {Shape{7, 5}, Shape{9}, Shape{6, 6}}),
                       .option = option};
      spec.members[1].codec = "none";
      const std::string text = complaints(workers, spec, 4, true);
      if (text.find("invalid argument: tensor") != std::string::npos) continue;
      EXPECT_EQ(text, "") << codec << " by " << plan::to_text(option);
    }
  }
}

TEST(Message, StagesRunOneByOneAndTheFirstMemberByMember) {
  Workers workers({.machines = 2, .workers_per_machine = 2});
  const MessageSpec spec{.members = test::members("topk:0.3", kShapes),
                         .option = test::option("Comp@device > allgather@flat > Decomp@device")};
  workers.run([&](Fabric& fabric) {
    auto whole = Message::make(spec, fabric);
    auto parts = Message::make(spec, fabric);
    ASSERT_TRUE(whole && parts);
    Gradients a = gradients_of(spec, fabric.rank(), 0);
    Gradients b = gradients_of(spec, fabric.rank(), 0);
    ASSERT_TRUE((*whole)->run(0, a.spans()).has_value());
    Message& message = **parts;
    ASSERT_EQ(message.stages().size(), 3U);
    EXPECT_TRUE(message.stages()[0].first_codec);
    EXPECT_EQ(message.stages()[1].link, Link::kInter);
    ASSERT_TRUE(message.begin(0, b.spans()).is_ok());
    EXPECT_EQ(message.start(1).code(), Code::kInvalidArgument);
    ASSERT_TRUE(message.run_codec(0, 2).is_ok());
    EXPECT_EQ(message.run_codec(0, 2).code(), Code::kInvalidArgument);
    ASSERT_TRUE(message.run_codec(0, 0).is_ok());
    ASSERT_TRUE(message.run_codec(0).is_ok());
    EXPECT_TRUE(message.done(0));
    EXPECT_FALSE(message.end().has_value());
    ASSERT_TRUE(message.start(1).is_ok());
    ASSERT_TRUE(message.wait(1).is_ok());
    ASSERT_TRUE(message.run_codec(2).is_ok());
    const auto outcome = message.end();
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(a.values(), b.values());
  });
}

TEST(Message, RefusesWhatDoesNotFitAndSaysWhy) {
  Workers workers({.machines = 1, .workers_per_machine = 2});
  Fabric& fabric = workers.fabric(0);
  const plan::Option gather = test::option("Comp@device > allgather@flat > Decomp@device");
  const plan::Option sum = test::option("Comp@device > allreduce@flat > Decomp@device");
  const auto refused = [&](const MessageSpec& spec) {
    const auto made = Message::make(spec, fabric);
    return made ? std::string("accepted") : made.error().message();
  };
  EXPECT_NE(refused({.members = {}, .option = gather}).find("without tensors"), std::string::npos);
  EXPECT_NE(
      refused({.members = test::members("bogus", {Shape{3}}), .option = gather}).find("bogus"),
      std::string::npos);
  EXPECT_NE(refused({.members = test::members("topk:0.1", {Shape{3}}), .option = sum})
                .find("cannot be added up"),
            std::string::npos);
  EXPECT_NE(refused({.members = test::members("none", {Shape{3}}), .option = sum})
                .find("makes no payloads"),
            std::string::npos);
  MessageSpec mixed{.members = test::members("efsign", {Shape{3}, Shape{4}}), .option = gather};
  mixed.members[1].codec = "onebit";
  EXPECT_NE(refused(mixed).find("one codec"), std::string::npos);
  mixed.members[1].codec = "none";
  EXPECT_NE(refused(mixed).find("none travels beside"), std::string::npos);
}

TEST(Message, WrongGradientsAreRefusedBeforeAnythingIsSent) {
  Workers workers({.machines = 1, .workers_per_machine = 1});
  auto message = Message::make(
      {.members = test::members("none", {Shape{3}}), .option = test::option("allreduce@flat")},
      workers.fabric(0));
  ASSERT_TRUE(message.has_value());
  Gradients wrong({{1.0F, 2.0F}});
  EXPECT_EQ((*message)->begin(0, wrong.spans()).code(), Code::kInvalidArgument);
  EXPECT_EQ((*message)->begin(0, {}).code(), Code::kInvalidArgument);
}

TEST(Message, BeginsNoStepWhileACollectiveOfTheLastOneIsUnderWay) {
  Workers workers({.machines = 1, .workers_per_machine = 1});
  auto message = Message::make(
      {.members = test::members("none", {Shape{3}}), .option = test::option("allreduce@flat")},
      workers.fabric(0));
  ASSERT_TRUE(message.has_value());
  Gradients gradients({{1.0F, 2.0F, 3.0F}});
  ASSERT_TRUE((*message)->begin(0).is_ok());
  EXPECT_EQ((*message)->start(0).code(), Code::kInvalidArgument) << "nothing is bound yet";
  ASSERT_TRUE((*message)->bind(0, gradients[0]).is_ok());
  EXPECT_EQ((*message)->bind(0, gradients[0]).code(), Code::kInvalidArgument);
  ASSERT_TRUE((*message)->start(0).is_ok());
  EXPECT_EQ((*message)->begin(1).code(), Code::kInvalidArgument);
  ASSERT_TRUE((*message)->wait(0).is_ok());
  ASSERT_TRUE((*message)->end().has_value());
  EXPECT_EQ(gradients[0][2], 3.0F);
}

TEST(Agreement, NamesTwoRanksAndTheLineInWhichTheirPlansDiffer) {
  Workers workers({.machines = 1, .workers_per_machine = 3});
  workers.run([](Fabric& fabric) {
    Group& world = fabric.group(plan::Phase::kFlat);
    EXPECT_TRUE(check_agreement(world, "a\nb\n").is_ok());
    const Status status = check_agreement(world, fabric.rank() == 2 ? "a\nc\n" : "a\nb\n");
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    for (const char* const word : {"ranks 0 and 2", "line 2", "\"b\"", "\"c\""}) {
      EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    }
    EXPECT_FALSE(check_agreement(world, fabric.rank() == 1 ? "a\n" : "a\nb\n").is_ok());
  });
}

TEST(Fabric, RefusesATopologyThatIsNotTheWorlds) {
  auto world = comm::make_local_world({.topology = {.machines = 1, .workers_per_machine = 1}});
  ASSERT_TRUE(world.has_value());
  const auto made =
      Fabric::make(std::move(world->front()), {.machines = 2, .workers_per_machine = 2});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gradpress::sync
