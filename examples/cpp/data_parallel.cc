// A small net of PyTorch's C++ API, trained by all workers of a job with compressed gradients:
//
//   cmake -S examples/cpp -B build-example && cmake --build build-example
//   gradpress launch -n 2 -- build-example/data_parallel
#include <gradpress/ddp.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  auto world = gradpress::connect_world({.backend = "gloo"});
  if (!world) return std::fprintf(stderr, "%s\n", world.error().to_string().c_str()), 1;

  torch::set_num_threads(1);
  torch::nn::Sequential net(torch::nn::Linear(64, 128), torch::nn::ReLU(),
                            torch::nn::Linear(128, 1));
  auto ddp = gradpress::ddp::DataParallel::make(net.ptr(), std::move(*world),
                                                {.engine = {.codec = "acpsgd:4"}});
  if (!ddp) return std::fprintf(stderr, "%s\n", ddp.error().to_string().c_str()), 1;
  const unsigned rank = (*ddp)->rank();

  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  torch::manual_seed(rank);  // each worker draws samples of its own
  for (int step = 0; step < 100; ++step) {
    const auto inputs = torch::randn({32, 64});
    const auto loss = torch::mse_loss(net->forward(inputs), inputs.sum(1, /*keepdim=*/true) / 8.0);
    optimizer.zero_grad();
    loss.backward();  // gradients leave while this runs
    const auto done = (*ddp)->synchronise();
    if (!done) return std::fprintf(stderr, "%s\n", done.error().to_string().c_str()), 1;
    if (done->finite) optimizer.step();

    double mean = loss.item<double>();
    if (!(*ddp)->mean({&mean, 1})) return 1;
    if (rank == 0 && step % 33 == 0) {
      std::printf("step %d: loss %.3f, %llu bytes sent\n", step, mean,
                  static_cast<unsigned long long>(done->sent.intra + done->sent.inter));
    }
  }
}
