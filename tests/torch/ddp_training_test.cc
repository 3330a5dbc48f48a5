// Several steps of training: replicas stay alike, and do what one worker would.
#include <array>

#include "torch/ddp_workers.h"

namespace gradpress::ddp {
namespace {

constexpr unsigned kSteps = 5;

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.1).momentum(0.9); }

/// What one worker makes of the whole batches.
std::vector<at::Tensor> trained_alone(std::uint64_t seed) {
  torch::nn::Sequential net = make_net(seed);
  torch::optim::SGD optimizer(net->parameters(), sgd());
  for (unsigned step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(net, inputs_of(step), targets_of(step)).backward();
    optimizer.step();
  }
  return copies(net->parameters());
}

class DataParallelTraining : public testing::TestWithParam<unsigned> {};

TEST_P(DataParallelTraining, IsTheTrainingOfOneWorkerWithAllBatches) {
  const unsigned workers = GetParam();
  auto nets = make_nets(workers);
  run_replicas(nets, {}, [&](unsigned rank, DataParallel& ddp) {
    torch::optim::SGD optimizer(nets[rank]->parameters(), sgd());
    for (unsigned step = 0; step < kSteps; ++step) {
      if (step % 2 == 0) {
        optimizer.zero_grad();
      } else {  // as set_to_none would: autograd puts a new tensor in place
        for (at::Tensor& parameter : nets[rank]->parameters()) parameter.mutable_grad().reset();
      }
      loss_of(nets[rank], share(inputs_of(step), rank, workers),
              share(targets_of(step), rank, workers))
          .backward();
      const auto done = ddp.synchronise();
      ASSERT_TRUE(done.has_value()) << done.error().message();
      EXPECT_EQ(done->step, step);
      EXPECT_EQ(done->unused, 0U);
      optimizer.step();
    }
  });
  const auto alone = trained_alone(100);
  for (auto& net : nets) {
    expect_close(net->parameters(), alone, 1e-6);
    expect_same_bits(net->parameters(), nets[0]->parameters());
  }
}

TEST_P(DataParallelTraining, WithAccumulationIsTrainingWithBigBatches) {
  const unsigned workers = GetParam();
  auto nets = make_nets(workers);
  run_replicas(nets, {}, [&](unsigned rank, DataParallel& ddp) {
    torch::optim::SGD optimizer(nets[rank]->parameters(), sgd());
    for (unsigned step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto backward_of = [&](unsigned part) {
        const auto inputs = share(inputs_of(step), rank, workers);
        const auto targets = share(targets_of(step), rank, workers);
        (loss_of(nets[rank], share(inputs, part, 3), share(targets, part, 3)) / 3.0).backward();
      };
      {
        const DataParallel::NoSync outer(ddp);
        backward_of(0);
        const DataParallel::NoSync inner(ddp);
        backward_of(1);
      }
      backward_of(2);
      const auto done = ddp.synchronise();
      ASSERT_TRUE(done.has_value()) << done.error().message();
      EXPECT_EQ(done->step, step);
      optimizer.step();
    }
  });
  const auto alone = trained_alone(100);
  for (auto& net : nets) expect_close(net->parameters(), alone, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Workers, DataParallelTraining, testing::Values(1U, 2U, 3U));

class DataParallelCodec : public testing::TestWithParam<const char*> {};

TEST_P(DataParallelCodec, LeavesTheSameBitsOnEveryRank) {
  constexpr unsigned kWorkers = 3;
  auto nets = make_nets(kWorkers);
  std::array<double, kWorkers> last{};
  std::array<double, kWorkers> first{};
  run_replicas(nets, {.engine = {.codec = GetParam(), .least_elements = 100}},
               [&](unsigned rank, DataParallel& ddp) {
                 torch::optim::SGD optimizer(nets[rank]->parameters(), 0.05);
                 for (unsigned step = 0; step < 30; ++step) {
                   optimizer.zero_grad();
                   const auto loss = loss_of(nets[rank], share(inputs_of(0), rank, kWorkers),
                                             share(targets_of(0), rank, kWorkers));
                   loss.backward();
                   ASSERT_TRUE(ddp.synchronise().has_value());
                   optimizer.step();
                   if (step == 0) first[rank] = loss.item<double>();
                   last[rank] = loss.item<double>();
                 }
                 EXPECT_TRUE(ddp.mean(std::span(&first[rank], 1)).is_ok());
                 EXPECT_TRUE(ddp.mean(std::span(&last[rank], 1)).is_ok());
               });
  for (auto& net : nets) expect_same_bits(net->parameters(), nets[0]->parameters());
  EXPECT_LT(last[0], first[0]);
  EXPECT_EQ(last[0], last[1]);
  EXPECT_EQ(last[0], last[2]);
}

INSTANTIATE_TEST_SUITE_P(Codecs, DataParallelCodec,
                         testing::Values("none", "efsign", "topk:0.05", "acpsgd:4", "powersgd:2",
                                         "dgc:0.05"),
                         [](const auto& param) {
                           std::string name(param.param);
                           for (char& c : name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

TEST(DataParallel, SeveralInOneProcessTrainSideBySide) {
  constexpr unsigned kWorkers = 2;
  auto first = make_nets(kWorkers);
  auto second = make_nets(kWorkers);
  auto worlds = make_local_worlds({.workers = kWorkers});
  ASSERT_TRUE(worlds.has_value());
  run_workers(kWorkers, [&](unsigned rank, World world) {
    auto one = DataParallel::make(first[rank].ptr(), std::move(world), {});
    auto two = DataParallel::make(second[rank].ptr(), std::move((*worlds)[rank]), {});
    ASSERT_TRUE(one.has_value() && two.has_value());
    torch::optim::SGD of_first(first[rank]->parameters(), sgd());
    torch::optim::SGD of_second(second[rank]->parameters(), sgd());
    for (unsigned step = 0; step < kSteps; ++step) {
      of_first.zero_grad();
      of_second.zero_grad();
      const auto inputs = share(inputs_of(step), rank, kWorkers);
      const auto targets = share(targets_of(step), rank, kWorkers);
      // One backward through both: their gradients come mixed.
      (loss_of(first[rank], inputs, targets) + loss_of(second[rank], inputs, targets)).backward();
      ASSERT_TRUE((*two)->synchronise().has_value());
      ASSERT_TRUE((*one)->synchronise().has_value());
      of_first.step();
      of_second.step();
    }
  });
  const auto alone = trained_alone(100);
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    expect_close(first[rank]->parameters(), alone, 1e-6);
    expect_close(second[rank]->parameters(), alone, 1e-6);
  }
}

/// Two layers that are one: the module names its parameters twice.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    layer = register_module("layer", torch::nn::Linear(kInputs, kInputs));
    register_module("again", layer);
  }
  at::Tensor forward(const at::Tensor& inputs) { return layer(torch::tanh(layer(inputs))); }
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Tied);

TEST(DataParallel, SharedParametersAreSynchronisedOnce) {
  constexpr unsigned kWorkers = 2;
  torch::manual_seed(7);
  std::vector<Tied> tied{Tied(), Tied()};
  Tied alone;
  for (std::size_t i = 0; i < 2; ++i) {
    const torch::NoGradGuard no_grad;
    alone->layer->parameters()[i].copy_(tied[0]->layer->parameters()[i]);
  }
  alone->forward(inputs_of(0)).pow(2).mean().backward();
  run_replicas(tied, {}, [&](unsigned rank, DataParallel& ddp) {
    tied[rank]->forward(share(inputs_of(0), rank, kWorkers)).pow(2).mean().backward();
    ASSERT_TRUE(ddp.synchronise().has_value());
    EXPECT_EQ(ddp.engine().summary().find("again"), std::string::npos);
  });
  for (auto& net : tied) {
    expect_close(gradients_of(*net->layer), gradients_of(*alone->layer), 1e-6);
  }
}

TEST(DataParallel, FrozenParametersBecomeRankZerosAndStay) {
  auto nets = make_nets(2);
  const auto wanted = copies(nets[0]->parameters());
  for (auto& net : nets) net->parameters()[0].set_requires_grad(false);
  run_replicas(nets, {}, [&](unsigned rank, DataParallel& ddp) {
    loss_of(nets[rank], inputs_of(0), targets_of(0)).backward();
    ASSERT_TRUE(ddp.synchronise().has_value());
    EXPECT_FALSE(nets[rank]->parameters()[0].grad().defined());
  });
  for (auto& net : nets) expect_same_bits(copies(net->parameters()), wanted);
}

}  // namespace
}  // namespace gradpress::ddp
