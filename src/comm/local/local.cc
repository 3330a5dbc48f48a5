#include "comm/local/local.h"

#include <numeric>

#include "comm/local/board.h"
#include "comm/local/transport.h"
#include "comm/transport_group.h"

namespace gradpress::comm {

namespace {

constexpr unsigned kMostWorkers = 4096;

}  // namespace

Result<std::vector<std::unique_ptr<Group>>> make_local_world(const LocalOptions& options) {
  const auto [machines, workers] = options.topology;
  if (machines == 0 || workers == 0 || workers > kMostWorkers / machines) {
    return fail(Code::kInvalidArgument, "local world: wanted 1 to ", kMostWorkers, " workers, got ",
                machines, " machines of ", workers);
  }
  if (options.timeout.count() <= 0) {
    return fail(Code::kInvalidArgument, "local world: wanted a timeout above 0 ms, got ",
                options.timeout.count(), " ms");
  }
  std::vector<unsigned> ranks(options.topology.workers());
  std::iota(ranks.begin(), ranks.end(), 0U);
  const auto board = std::make_shared<Board>(
      std::make_shared<Network>(options.topology, options.inter, options.intra), steady_clock(),
      ranks);
  std::vector<std::unique_ptr<Group>> world;
  world.reserve(ranks.size());
  for (const unsigned rank : ranks) {
    world.push_back(std::make_unique<TransportGroup>(std::make_unique<LocalTransport>(board, rank),
                                                     options.timeout));
  }
  return world;
}

}  // namespace gradpress::comm
