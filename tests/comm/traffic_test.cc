// What a call is said to send is what the groups count.
#include "comm/traffic.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "comm/local/local.h"
#include "support/workers.h"

namespace gradpress::comm {
namespace {

void expect_as_promised(const Topology& topology, CollectiveKind kind, DataType type,
                        std::size_t elements) {
  auto world = make_local_world({.topology = topology});
  ASSERT_TRUE(world.has_value());
  test::run_workers(*world, [&](Group& group) {
    const unsigned size = group.size();
    const std::size_t unit = size_of(type);
    // Uneven on purpose: rank r's piece has r elements more.
    std::vector<std::size_t> counts(size);
    for (unsigned rank = 0; rank < size; ++rank) counts[rank] = elements + rank;
    const std::size_t all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    std::vector<std::size_t> receive(size, counts[group.rank()]);
    Collective call{.kind = kind, .type = type};
    CallSize promise{.kind = kind, .type = type};
    std::size_t in = elements;
    std::size_t out = elements;
    if (kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
        kind == CollectiveKind::kBroadcast) {
      promise.bytes = elements * unit;
    } else {
      call.counts = counts;
      const bool spreads =
          kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll;
      in = spreads ? all : counts[group.rank()];
      out = spreads ? counts[group.rank()] : all;
      if (kind == CollectiveKind::kAllToAll) {
        call.receive_counts = receive;
        out = size * counts[group.rank()];
      }
      for (std::size_t& count : counts) count *= unit;
      promise.piece_bytes = counts;
    }
    std::vector<float> from(in);
    std::vector<float> to(out);
    call.in = test::bytes_of(from).first(in * unit);
    call.out = test::bytes_of(to).first(out * unit);
    std::vector<std::size_t> elements_each = counts;
    if (!call.counts.empty()) {
      for (std::size_t& count : elements_each) count /= unit;
      call.counts = elements_each;
    }
    std::vector<unsigned> ranks(size);
    std::iota(ranks.begin(), ranks.end(), 0U);
    ASSERT_TRUE(group.run(call).is_ok());
    const SentBytes sent = group.sent_bytes();
    const SentBytes said = sent_in(promise, group.rank(), ranks, topology);
    EXPECT_EQ(sent.intra, said.intra) << collective_name(kind) << " rank " << group.rank();
    EXPECT_EQ(sent.inter, said.inter) << collective_name(kind) << " rank " << group.rank();
  });
}

TEST(Traffic, IsWhatTheGroupsCount) {
  for (const Topology& topology :
       {Topology{1, 1}, Topology{1, 2}, Topology{2, 2}, Topology{3, 2}, Topology{1, 7}}) {
    for (const auto kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
          CollectiveKind::kAllToAll, CollectiveKind::kGather, CollectiveKind::kReduce,
          CollectiveKind::kBroadcast}) {
      for (const std::size_t elements : {0, 1, 5, 1000}) {
        expect_as_promised(topology, kind, DataType::kFloat32, elements);
        expect_as_promised(topology, kind, DataType::kFloat16, elements);
      }
    }
  }
}

}  // namespace
}  // namespace gradpress::comm
