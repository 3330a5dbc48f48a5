// One step: what synchronise() leaves in gradients and buffers.
#include <algorithm>
#include <array>
#include <cmath>

#include "torch/ddp_workers.h"

namespace gradpress::ddp {
namespace {

constexpr unsigned kWorkers = 2;

double norm_of(const std::vector<at::Tensor>& tensors) {
  double sum = 0.0;
  for (const at::Tensor& tensor : tensors) {
    sum += tensor.to(torch::kFloat64).pow(2).sum().item<double>();
  }
  return std::sqrt(sum);
}

std::vector<at::Tensor> scaled(std::vector<at::Tensor> tensors, double factor) {
  for (at::Tensor& tensor : tensors) tensor = tensor * factor;
  return tensors;
}

/// Each worker's own gradients of its share, and the two nets that hold them, which are alike.
struct LocalGradients {
  std::vector<torch::nn::Sequential> nets;
  std::array<std::vector<at::Tensor>, kWorkers> own;

  LocalGradients() {
    for (unsigned rank = 0; rank < kWorkers; ++rank) {
      torch::nn::Sequential net = make_net(1);
      backward(net, rank);
      own[rank] = gradients_of(*net);
      nets.push_back(make_net(1));
    }
  }
  static void backward(torch::nn::Sequential& net, unsigned rank) {
    loss_of(net, share(inputs_of(0), rank, kWorkers), share(targets_of(0), rank, kWorkers))
        .backward();
  }
  std::vector<at::Tensor> mean(double factor_of_0, double factor_of_1) const {
    std::vector<at::Tensor> result;
    for (std::size_t i = 0; i < own[0].size(); ++i) {
      result.push_back((own[0][i] * factor_of_0 + own[1][i] * factor_of_1) / 2.0);
    }
    return result;
  }
};

TEST(DataParallelClipping, BeforeScalesEachWorkersOwnToTheLimitOverRootOfWorkers) {
  LocalGradients gradients;
  const std::array<double, kWorkers> norms{norm_of(gradients.own[0]), norm_of(gradients.own[1])};
  // Between the two norms: one worker is clipped, the other is not.
  const double limit = std::sqrt(2.0) * (norms[0] + norms[1]) / 2.0;
  ASSERT_NE(norms[0], norms[1]);
  run_replicas(gradients.nets, {.clip_before = limit}, [&](unsigned rank, DataParallel& ddp) {
    LocalGradients::backward(gradients.nets[rank], rank);
    ASSERT_TRUE(ddp.synchronise().has_value());
  });
  const double own_limit = limit / std::sqrt(2.0);
  const auto wanted =
      gradients.mean(std::min(1.0, own_limit / norms[0]), std::min(1.0, own_limit / norms[1]));
  for (auto& net : gradients.nets) expect_close(gradients_of(*net), wanted, 1e-7);
}

TEST(DataParallelClipping, AfterScalesTheMeanByTheSameFactorOnEveryRank) {
  LocalGradients gradients;
  const auto mean = gradients.mean(1.0, 1.0);
  const double limit = norm_of(mean) / 3.0;
  run_replicas(gradients.nets, {.clip_after = limit}, [&](unsigned rank, DataParallel& ddp) {
    LocalGradients::backward(gradients.nets[rank], rank);
    ASSERT_TRUE(ddp.synchronise().has_value());
  });
  for (auto& net : gradients.nets) expect_close(gradients_of(*net), scaled(mean, 1.0 / 3.0), 1e-7);
  expect_same_bits(gradients_of(*gradients.nets[0]), gradients_of(*gradients.nets[1]));
}

TEST(DataParallelClipping, AGradientBelowTheLimitIsLeftAlone) {
  LocalGradients gradients;
  const auto mean = gradients.mean(1.0, 1.0);
  run_replicas(gradients.nets, {.clip_before = 1e6, .clip_after = 1e6},
               [&](unsigned rank, DataParallel& ddp) {
                 LocalGradients::backward(gradients.nets[rank], rank);
                 ASSERT_TRUE(ddp.synchronise().has_value());
               });
  for (auto& net : gradients.nets) expect_close(gradients_of(*net), mean, 1e-8);
}

/// Uses one of its layers, as it is told.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    left = register_module("left", torch::nn::Linear(kInputs, kClasses));
    right = register_module("right", torch::nn::Linear(kInputs, kClasses));
  }
  at::Tensor forward(const at::Tensor& inputs, bool use_right) {
    return left(inputs) + (use_right ? right(inputs) : torch::zeros({kBatch, kClasses}));
  }
  torch::nn::Linear left{nullptr};
  torch::nn::Linear right{nullptr};
};
TORCH_MODULE(Branches);

TEST(DataParallelUnused, AParameterWithoutGradientIsAnErrorThatNamesIt) {
  torch::manual_seed(1);
  std::vector<Branches> branches{Branches(), Branches()};
  run_replicas(branches, {}, [&](unsigned rank, DataParallel& ddp) {
    branches[rank]->forward(inputs_of(0), false).sum().backward();
    for (int twice = 0; twice < 2; ++twice) {
      const auto done = ddp.synchronise();
      ASSERT_FALSE(done.has_value());
      EXPECT_EQ(done.error().code(), Code::kInvalidArgument);
      EXPECT_NE(done.error().message().find("right.bias, right.weight"), std::string::npos)
          << done.error().message();
      EXPECT_EQ(done.error().message().find("left"), std::string::npos);
    }
  });
}

TEST(DataParallelUnused, CountsAsZeroWhereThatIsAllowed) {
  torch::manual_seed(1);
  std::vector<Branches> branches{Branches(), Branches()};
  run_replicas(branches, {.engine = {.allow_unused = true}}, [&](unsigned rank, DataParallel& ddp) {
    branches[rank]->forward(inputs_of(0), rank == 0).sum().backward();
    const auto done = ddp.synchronise();
    ASSERT_TRUE(done.has_value()) << done.error().message();
    EXPECT_EQ(done->unused, rank == 0 ? 0U : 2U);
  });
  // d(sum)/d(bias) is the batch's size, on one of two workers.
  for (auto& module : branches) {
    EXPECT_TRUE(torch::allclose(module->left->bias.grad(), torch::full({kClasses}, kBatch * 1.0)));
    EXPECT_TRUE(torch::allclose(module->right->bias.grad(), torch::full({kClasses}, kBatch / 2.0)));
  }
  expect_same_bits(gradients_of(*branches[0]), gradients_of(*branches[1]));
}

TEST(DataParallelUnused, AGradientOfAnEarlierPartOfAccumulationIsSent) {
  torch::manual_seed(1);
  std::vector<Branches> branches{Branches(), Branches()};
  run_replicas(branches, {}, [&](unsigned rank, DataParallel& ddp) {
    {
      const DataParallel::NoSync no_sync(ddp);
      branches[rank]->forward(inputs_of(0), true).sum().backward();
      EXPECT_FALSE(ddp.synchronise().has_value()) << "a NoSync lives";
    }
    branches[rank]->forward(inputs_of(0), false).sum().backward();
    const auto done = ddp.synchronise();
    ASSERT_TRUE(done.has_value()) << done.error().message();
  });
  for (auto& module : branches) {
    EXPECT_TRUE(torch::allclose(module->left->bias.grad(), torch::full({kClasses}, kBatch * 2.0)));
    EXPECT_TRUE(torch::allclose(module->right->bias.grad(), torch::full({kClasses}, kBatch * 1.0)));
  }
}

std::vector<torch::nn::Sequential> make_normed_nets() {
  std::vector<torch::nn::Sequential> nets;
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    torch::manual_seed(rank);
    nets.emplace_back(torch::nn::Linear(kInputs, 8), torch::nn::BatchNorm1d(8),
                      torch::nn::Linear(8, kClasses));
    // Counts its batches in int64; rank 1 begins with others.
    nets.back()->buffers()[2].fill_(static_cast<std::int64_t>(10 * rank));
  }
  return nets;
}

TEST(DataParallelBuffers, BecomeRankZerosWithEveryStep) {
  auto nets = make_normed_nets();
  run_replicas(nets, {}, [&](unsigned rank, DataParallel& ddp) {
    for (unsigned step = 0; step < 3; ++step) {
      loss_of(nets[rank], share(inputs_of(step), rank, kWorkers),
              share(targets_of(step), rank, kWorkers))
          .backward();
      ASSERT_TRUE(ddp.synchronise().has_value());
      for (at::Tensor& parameter : nets[rank]->parameters()) parameter.mutable_grad().reset();
    }
    const std::uint64_t least = rank == 0 ? 3 * 2 * 8 * sizeof(float) : 0;
    EXPECT_GE(ddp.sent_besides().inter, least);
  });
  ASSERT_EQ(nets[0]->buffers().size(), 3U);
  expect_same_bits(nets[0]->buffers(), nets[1]->buffers());
  EXPECT_EQ(nets[1]->buffers()[2].item<std::int64_t>(), 3);
  EXPECT_GT(nets[0]->buffers()[0].abs().sum().item<double>(), 0.0);
}

TEST(DataParallelBuffers, StayEachWorkersOwnWhereThatIsAsked) {
  auto nets = make_normed_nets();
  run_replicas(nets, {.broadcast_buffers = false}, [&](unsigned rank, DataParallel& ddp) {
    loss_of(nets[rank], share(inputs_of(0), rank, kWorkers), share(targets_of(0), rank, kWorkers))
        .backward();
    ASSERT_TRUE(ddp.synchronise().has_value());
  });
  EXPECT_FALSE(torch::equal(nets[0]->buffers()[0], nets[1]->buffers()[0]));
}

/// Registers its layers in the order in which backward meets them, which is not the usual one.
struct BackwardsImpl : torch::nn::Module {
  BackwardsImpl() {
    last = register_module("last", torch::nn::Linear(kInputs, kInputs));
    first = register_module("first", torch::nn::Linear(kInputs, kInputs));
  }
  at::Tensor forward(const at::Tensor& inputs) { return last(torch::tanh(first(inputs))); }
  torch::nn::Linear last{nullptr};
  torch::nn::Linear first{nullptr};
};
TORCH_MODULE(Backwards);

/// The layer of the first gradient that the engine got.
std::string layer_handed_over_first(const Options& options) {
  std::vector<Backwards> modules{Backwards(), Backwards()};
  std::string name;
  run_replicas(modules, options, [&](unsigned rank, DataParallel& ddp) {
    ddp.engine().record_trace(1);
    modules[rank]->forward(inputs_of(0)).sum().backward();
    ASSERT_TRUE(ddp.synchronise().has_value());
    const auto trace = ddp.engine().recorded_trace();
    ASSERT_EQ(trace.tensors.size(), 4U);
    if (rank == 0) name = trace.tensors[0].name.substr(0, trace.tensors[0].name.find('.'));
  });
  return name;
}

TEST(DataParallel, GradientsAreHandedOverAsBackwardFinishesThem) {
  EXPECT_EQ(layer_handed_over_first({}), "last");
  // Clipping first: all at once, in the engine's own order.
  EXPECT_EQ(layer_handed_over_first({.clip_before = 1.0}), "first");
}

TEST(DataParallel, MeansOfNumbersAreTheSameOnEveryRank) {
  auto nets = make_nets(3);
  run_replicas(nets, {}, [](unsigned rank, DataParallel& ddp) {
    std::array<double, 2> values{1.0 * rank, 0.1};
    ASSERT_TRUE(ddp.mean(values).is_ok());
    EXPECT_EQ(values[0], 1.0);
    EXPECT_DOUBLE_EQ(values[1], 0.1);
    EXPECT_TRUE(ddp.mean({}).is_ok());
    EXPECT_EQ(ddp.rank(), rank);
    EXPECT_EQ(ddp.workers(), 3U);
  });
}

}  // namespace
}  // namespace gradpress::ddp
