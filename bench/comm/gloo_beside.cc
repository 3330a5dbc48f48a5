// Our all-reduce on Gloo's buffers beside Gloo's own, turn about in one run.
//
//   gloo_beside FOLDER BYTES TURNS     one rank, by the variables of the environment
// FOLDER is empty and the same for all: Gloo's ranks meet there. Rank 0 prints both medians and
// their ratio. A turn lasts from one barrier to the next.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <gradpress/world.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace gradpress {
namespace {

struct Times {
  std::vector<double> ms;

  double median() {
    std::ranges::sort(ms);
    return ms[ms.size() / 2];
  }
  double least() const { return *std::ranges::min_element(ms); }
};

std::shared_ptr<gloo::rendezvous::Context> plain_context(const Group& group,
                                                         const std::string& folder) {
  gloo::transport::tcp::attr attributes("127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(group.rank()),
                                                             static_cast<int>(group.size()));
  gloo::rendezvous::FileStore store(folder);
  context->connectFullMesh(store, device);
  return context;
}

Status all_reduce(Group& group, std::vector<float>& values) {
  return group.run({.kind = CollectiveKind::kAllReduce,
                    .type = DataType::kFloat32,
                    .in = std::as_bytes(std::span(values)),
                    .out = std::as_writable_bytes(std::span(values)),
                    .tensor = "bench"});
}

void plain_all_reduce(const std::shared_ptr<gloo::rendezvous::Context>& context,
                      std::vector<float>& values) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(values.data(), values.size());
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
  gloo::allreduce(options);
}

template <class Work>
double timed(Group& group, const Work& work) {
  (void)group.run({.kind = CollectiveKind::kBarrier});
  const auto start = std::chrono::steady_clock::now();
  work();
  (void)group.run({.kind = CollectiveKind::kBarrier});
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

int run(const std::string& folder, std::size_t bytes, std::size_t turns) {
  auto world = connect_world({.backend = "gloo"});
  if (!world) {
    std::fprintf(stderr, "%s\n", world.error().to_string().c_str());
    return 1;
  }
  Group& group = *world->group;
  const auto context = plain_context(group, folder);
  std::vector<float> values(bytes / sizeof(float));
  Times ours;
  Times plain;
  constexpr std::size_t kWarmup = 2;
  for (std::size_t turn = 0; turn < turns + kWarmup; ++turn) {
    // Each goes first in every other turn.
    const std::array order = {turn % 2 == 0 ? &ours : &plain, turn % 2 == 0 ? &plain : &ours};
    for (Times* times : order) {
      std::ranges::fill(values, 1.0F);
      Status status;
      const double ms = timed(group, [&] {
        if (times == &ours) {
          status = all_reduce(group, values);
        } else {
          plain_all_reduce(context, values);
        }
      });
      if (!status.is_ok() || values.back() != static_cast<float>(group.size())) {
        std::fprintf(stderr, "wrong: %s\n", status.to_string().c_str());
        return 1;
      }
      if (turn >= kWarmup) times->ms.push_back(ms);
    }
  }
  if (group.rank() == 0) {
    std::printf(
        "%zu B, %u ranks, %zu turns: ours median %.2f ms (least %.2f), Gloo's %.2f ms "
        "(least %.2f), ratio %.3f of medians, %.3f of the least\n",
        bytes, group.size(), turns, ours.median(), ours.least(), plain.median(), plain.least(),
        ours.median() / plain.median(), ours.least() / plain.least());
  }
  return 0;
}

}  // namespace
}  // namespace gradpress

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "gloo_beside FOLDER BYTES TURNS\n");
    return 2;
  }
  try {
    return gradpress::run(argv[1], std::strtoull(argv[2], nullptr, 10),
                          std::strtoull(argv[3], nullptr, 10));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
