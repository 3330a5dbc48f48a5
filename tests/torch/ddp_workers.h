// Workers as threads, each with a replica of a small module.
#pragma once

#include <gradpress/ddp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace gradpress::ddp {

constexpr std::int64_t kInputs = 8;
constexpr std::int64_t kClasses = 4;
constexpr std::int64_t kBatch =
    18;  ///< of all workers: one, two or three, in up to three parts each

/// Another seed, other parameters. Torch's generator is shared: modules are made on the main
/// thread.
inline torch::nn::Sequential make_net(std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(kInputs, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 16), torch::nn::Tanh(),
                               torch::nn::Linear(16, kClasses));
}

inline at::Tensor inputs_of(unsigned step) {
  return torch::sin(torch::arange(kBatch * kInputs, torch::kFloat32) * 0.37 + 1.0 * step)
      .reshape({kBatch, kInputs});
}

inline at::Tensor targets_of(unsigned step) {
  return torch::cos(torch::arange(kBatch * kClasses, torch::kFloat32) * 0.71 + 2.0 * step)
      .reshape({kBatch, kClasses});
}

/// Rows of a batch that belong to one of `workers`.
inline at::Tensor share(const at::Tensor& batch, unsigned rank, unsigned workers) {
  return batch.chunk(workers, 0)[rank];
}

inline at::Tensor loss_of(torch::nn::Sequential& net, const at::Tensor& inputs,
                          const at::Tensor& targets) {
  return torch::mse_loss(net->forward(inputs), targets);
}

inline std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

inline std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : module.parameters()) {
    result.push_back(parameter.grad().detach().clone());
  }
  return result;
}

inline void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(torch::equal(a[i], b[i])) << "tensor " << i;
}

inline void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b,
                         double limit) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_LE((a[i] - b[i]).abs().max().item<double>(), limit) << "tensor " << i;
  }
}

/// Runs work(rank, world) on a thread per worker.
template <class Work>
void run_workers(unsigned workers, const Work& work) {
  auto worlds = make_local_worlds({.workers = workers});
  ASSERT_TRUE(worlds.has_value());
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      torch::set_num_threads(1);
      work(rank, std::move((*worlds)[rank]));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The same with modules[rank] wrapped: work(rank, ddp).
template <class Module, class Work>
void run_replicas(std::vector<Module>& modules, const Options& options, const Work& work) {
  run_workers(static_cast<unsigned>(modules.size()), [&](unsigned rank, World world) {
    auto ddp = DataParallel::make(modules[rank].ptr(), std::move(world), options);
    ASSERT_TRUE(ddp.has_value()) << ddp.error().message();
    work(rank, **ddp);
  });
}

/// Nets of unlike parameters: data parallel has to make them alike.
inline std::vector<torch::nn::Sequential> make_nets(unsigned workers) {
  std::vector<torch::nn::Sequential> nets;
  for (unsigned rank = 0; rank < workers; ++rank) nets.push_back(make_net(100 + rank));
  return nets;
}

}  // namespace gradpress::ddp
