// What goes wrong, and who is told.
#include <barrier>

#include "torch/ddp_workers.h"

namespace gradpress::ddp {
namespace {

/// What make() says on each of two ranks.
std::vector<Status> made(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                         const std::vector<Options>& options) {
  std::vector<Status> statuses(modules.size());
  run_workers(static_cast<unsigned>(modules.size()), [&](unsigned rank, World world) {
    const auto ddp = DataParallel::make(modules[rank], std::move(world), options[rank]);
    if (!ddp) statuses[rank] = ddp.error();
  });
  return statuses;
}

void expect_all_say(const std::vector<Status>& statuses, std::string_view text) {
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  }
}

TEST(DataParallelMake, ModulesThatDifferAreNamedOnEveryRank) {
  const auto statuses = made({torch::nn::Sequential(torch::nn::Linear(8, 4)).ptr(),
                              torch::nn::Sequential(torch::nn::Linear(8, 5)).ptr()},
                             {{}, {}});
  expect_all_say(statuses,
                 "rank 1: ddp: wanted parameter 0.weight: float [4, 8] as on rank 0, got parameter "
                 "0.weight: float [5, 8]");
}

TEST(DataParallelMake, AModuleWithMoreParametersIsTold) {
  const auto statuses = made({torch::nn::Linear(8, 4).ptr(),
                              torch::nn::Linear(torch::nn::LinearOptions(8, 4).bias(false)).ptr()},
                             {{}, {}});
  expect_all_say(statuses, "wanted parameter bias: float [4] as on rank 0, got option");
}

TEST(DataParallelMake, OptionsThatDifferAreTold) {
  auto one = torch::nn::Linear(8, 4).ptr();
  auto other = torch::nn::Linear(8, 4).ptr();
  expect_all_say(made({one, other}, {{.clip_after = 1.0}, {.clip_after = 2.0}}),
                 "wanted option clip_after: 1 as on rank 0, got option clip_after: 2");
  const Options raw{.engine = {.codec = "none", .least_elements = 1}};
  const Options signs{.engine = {.codec = "efsign", .least_elements = 1}};
  expect_all_say(made({one, other}, {signs, raw}), "ranks 0 and 1 have different plans");
  expect_all_say(made({one, other}, {{.clip_before = -1.0}, {.clip_before = -1.0}}), "-1");
}

TEST(DataParallelMake, AParameterOfAnotherTypeOnOneRankIsAnErrorOnAll) {
  auto one = torch::nn::Linear(8, 4).ptr();
  auto other = torch::nn::Linear(8, 4).ptr();
  other->to(torch::kFloat64);
  expect_all_say(
      made({one, other}, {{}, {}}),
      "rank 1: ddp: parameter weight: wanted float32 on the CPU, contiguous, got double");
}

TEST(DataParallelMake, ThereMustBeSomethingToTrain) {
  expect_all_say(made({nullptr, nullptr}, {{}, {}}), "wanted a module, got none");
  expect_all_say(made({torch::nn::Tanh().ptr(), torch::nn::Tanh().ptr()}, {{}, {}}),
                 "wanted parameters that need a gradient");
  const auto no_world = DataParallel::make(torch::nn::Linear(8, 4).ptr(), {}, {});
  ASSERT_FALSE(no_world.has_value());
  EXPECT_EQ(no_world.error().code(), Code::kInvalidArgument);
}

TEST(DataParallelStep, ASecondBackwardBeforeSynchroniseIsAnError) {
  auto nets = make_nets(2);
  // Who has its error must not leave before the other has its own, which would be that of a lost
  // peer.
  std::barrier both(2);
  run_replicas(nets, {}, [&](unsigned rank, DataParallel& ddp) {
    loss_of(nets[rank], inputs_of(0), targets_of(0)).backward();
    loss_of(nets[rank], inputs_of(1), targets_of(1)).backward();
    const auto done = ddp.synchronise();
    both.arrive_and_wait();
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code(), Code::kInvalidArgument);
    EXPECT_NE(done.error().message().find("NoSync"), std::string::npos) << done.error().message();
    double value = 0.0;
    EXPECT_EQ(ddp.mean(std::span(&value, 1)).message(), done.error().message());
  });
}

TEST(DataParallelStep, ASparseGradientIsAnErrorThatNamesIt) {
  std::vector<torch::nn::Embedding> embeddings;
  for (int rank = 0; rank < 2; ++rank) {
    embeddings.emplace_back(torch::nn::EmbeddingOptions(10, 3).sparse(true));
  }
  run_replicas(embeddings, {}, [&](unsigned rank, DataParallel& ddp) {
    embeddings[rank]->forward(torch::tensor({1, 2})).sum().backward();
    const auto done = ddp.synchronise();
    ASSERT_FALSE(done.has_value());
    EXPECT_NE(done.error().message().find("gradient of weight"), std::string::npos)
        << done.error().message();
    EXPECT_NE(done.error().message().find("Sparse"), std::string::npos) << done.error().message();
  });
}

TEST(DataParallelStep, AWorkerThatLeavesIsNamed) {
  auto nets = make_nets(2);
  run_replicas(nets, {}, [&](unsigned rank, DataParallel& ddp) {
    loss_of(nets[rank], inputs_of(0), targets_of(0)).backward();
    ASSERT_TRUE(ddp.synchronise().has_value());
    if (rank == 1) return;
    loss_of(nets[rank], inputs_of(1), targets_of(1)).backward();
    const auto done = ddp.synchronise();
    ASSERT_FALSE(done.has_value());
    EXPECT_EQ(done.error().code(), Code::kPeerLost);
    EXPECT_NE(done.error().message().find("rank 1"), std::string::npos) << done.error().message();
  });
}

TEST(DataParallelStep, AModuleOutlivesItsWrapper) {
  auto nets = make_nets(2);
  run_replicas(nets, {}, [&](unsigned rank, DataParallel& ddp) {
    loss_of(nets[rank], inputs_of(0), targets_of(0)).backward();
    ASSERT_TRUE(ddp.synchronise().has_value());
  });
  const auto before = gradients_of(*nets[0]);
  loss_of(nets[0], inputs_of(1), targets_of(1)).backward();
  EXPECT_FALSE(torch::equal(before[0], gradients_of(*nets[0])[0]));
}

}  // namespace
}  // namespace gradpress::ddp
