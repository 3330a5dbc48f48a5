#include "trainer.h"

#include <dlfcn.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "worker.h"

namespace gradpress::trainer {

namespace {

constexpr unsigned kLocalWorkers = 4;

/// The ends that live in this process: all of a local world, one of the others.
Result<std::vector<World>> make_worlds(const WorkerSettings& settings) {
  const std::chrono::milliseconds timeout(std::llround(settings.timeout_s * 1e3));
  if (settings.backend == "local") {
    return make_local_worlds(
        {.workers = settings.workers == 0 ? kLocalWorkers : settings.workers,
         .workers_per_machine = settings.local_size == 0 ? 1 : settings.local_size,
         .link = settings.link,
         .timeout = timeout});
  }
  WorldOptions options{.backend = settings.backend, .timeout = timeout};
  if (settings.local_size != 0) options.local_size = settings.local_size;
  auto world = connect_world(options);
  if (!world) return tl::unexpected(world.error());
  if (settings.workers != 0 && settings.workers != world->group->size()) {
    return fail(Code::kInvalidArgument, "--workers ", settings.workers,
                ", but the launcher started ", world->group->size());
  }
  std::vector<World> worlds;
  worlds.push_back(std::move(*world));
  return worlds;
}

/// Before long work whose result would otherwise be lost.
Status check_outputs(const Settings& settings) {
  for (const std::string& file :
       {settings.json, settings.record_trace, settings.record_gradients, settings.write_plan}) {
    const auto folder = std::filesystem::path(file).parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder)) {
      return Status::error(Code::kInvalidArgument, file, ": there is no folder ", folder.string());
    }
  }
  return {};
}

/// One thread a worker: workers share the cores already, and sums do not depend on how many threads
/// there are. OpenBLAS keeps a count of its own; by default every product asks for all cores, and
/// with four workers on two of them takes eight times as long.
void compute_by_one_thread() {
  at::set_num_threads(1);
  using SetThreads = void (*)(int);
  const auto set_threads =
      reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads"));
  if (set_threads != nullptr) set_threads(1);
}

/// The cause before its consequences: a worker that failed is lost to the others.
Status worst_of(const std::vector<Result<Record>>& results) {
  Status worst;
  for (const auto& result : results) {
    if (result) continue;
    if (worst.is_ok() || worst.code() == Code::kPeerLost) worst = result.error();
  }
  return worst;
}

}  // namespace

Result<Record> train(const Settings& settings, const std::atomic<bool>& stop) {
  if (Status status = check(settings); !status) return tl::unexpected(status);
  if (Status status = check_outputs(settings); !status) return tl::unexpected(status);
  compute_by_one_thread();
  const auto data = open_dataset(settings.data, settings.seed);
  if (!data) return tl::unexpected(data.error());
  // All replicas are made here, in one thread: they draw from torch's generator.
  const std::size_t replicas =
      settings.workers.backend != "local"
          ? 1
          : (settings.workers.workers == 0 ? kLocalWorkers : settings.workers.workers);
  std::vector<std::shared_ptr<Model>> models;
  for (std::size_t i = 0; i < replicas; ++i) {
    torch::manual_seed(settings.seed);
    auto model = make_model(settings.model, (*data)->shape());
    if (!model) return tl::unexpected(model.error());
    models.push_back(std::move(*model));
  }
  auto worlds = make_worlds(settings.workers);
  if (!worlds) return tl::unexpected(worlds.error());
  Console console(stdout, worlds->front().group->rank() != 0);
  const Shared shared{.settings = settings, .data = **data, .console = console, .stop = stop};
  std::vector<Result<Record>> results(worlds->size(), Result<Record>());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < worlds->size(); ++i) {
    threads.emplace_back([&, i] {
      at::set_num_threads(1);
      try {
        results[i] = run_worker(shared, models[i], std::move((*worlds)[i]));
      } catch (const std::exception& error) {
        const std::string_view text(error.what());
        results[i] = fail(Code::kInternal, "worker ", i, ": ", text.substr(0, text.find('\n')));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  console.end();
  if (Status status = worst_of(results); !status) return tl::unexpected(status);
  return std::move(results.front());
}

}  // namespace gradpress::trainer
