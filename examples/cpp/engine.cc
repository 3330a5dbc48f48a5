// Two gradients, synchronised over all workers of a job with ACP-SGD. Build and run:
//
//   cmake -S examples/cpp -B build-example && cmake --build build-example
//   gradpress launch -n 2 -- build-example/engine
#include <gradpress/engine.h>

#include <cstdio>
#include <vector>

int main() {
  auto world = gradpress::connect_world({.backend = "gloo"});
  if (!world) return std::fprintf(stderr, "%s\n", world.error().to_string().c_str()), 1;
  const unsigned rank = world->group->rank();

  auto engine = gradpress::Engine::make(
      std::move(*world),
      {{.name = "weight", .shape = {256, 128}}, {.name = "bias", .shape = {256}}},
      {.codec = "acpsgd:4"});
  if (!engine) return std::fprintf(stderr, "%s\n", engine.error().to_string().c_str()), 1;
  if (rank == 0) std::printf("%s", (*engine)->summary().c_str());

  std::vector<float> weight(256 * 128);
  std::vector<float> bias(256);
  for (int step = 0; step < 5; ++step) {
    // Backward would write these; each is handed over as soon as it is complete.
    for (float& value : weight) value = 1.0F + static_cast<float>(rank);
    if (auto status = (*engine)->ready(0, weight); !status) return 1;
    for (float& value : bias) value = static_cast<float>(rank);
    if (auto status = (*engine)->ready(1, bias); !status) return 1;
    const auto done = (*engine)->wait();
    if (!done) return std::fprintf(stderr, "%s\n", done.error().to_string().c_str()), 1;
    if (rank == 0) {
      std::printf("step %d: mean weight %.3f, mean bias %.3f, %llu bytes sent\n", step, weight[0],
                  bias[0], static_cast<unsigned long long>(done->sent.intra + done->sent.inter));
    }
  }
}
