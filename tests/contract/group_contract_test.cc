// What every backend must do, whatever it is made of: one suite over all of them. Every rank checks
// by itself, and ranks compare notes through the group alone, so that a rank may be a process.
#include <gradpress/group.h>
#include <gradpress/shape.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "contract/group_worlds.h"
#include "contract/typed_values.h"
#include "support/gradient.h"

namespace gradpress {
namespace {

using comm::Topology;
using test::sum_at;
using test::value_at;
using test::Values;
using test::values_of;

template <class Want>
void expect_values(const Values& got, const Want& want, const std::string& what) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got.get(i), want(i)) << what << ", element " << i << " of " << got.size();
  }
}

/// Through the group itself: whether every rank has the same bytes.
void expect_same_everywhere(Group& group, std::span<const std::byte> bytes) {
  std::vector<std::byte> all(bytes.size() * group.size());
  ASSERT_TRUE(group.run({.kind = CollectiveKind::kAllGather, .in = bytes, .out = all}).is_ok());
  for (unsigned rank = 0; rank < group.size(); ++rank) {
    ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(),
                           all.begin() + static_cast<std::ptrdiff_t>(rank * bytes.size())))
        << "ranks " << rank << " and " << group.rank() << " differ";
  }
}

std::size_t sum_of(const std::vector<std::size_t>& counts, unsigned ranks) {
  return std::accumulate(counts.begin(), counts.begin() + ranks, std::size_t{0});
}

/// Uneven, with nothing for some.
std::vector<std::size_t> uneven_counts(unsigned ranks, std::size_t n) {
  std::vector<std::size_t> counts;
  for (unsigned rank = 0; rank < ranks; ++rank) {
    counts.push_back(rank % 3 == 1 ? 0 : n / (rank + 1) + rank);
  }
  return counts;
}

constexpr std::array kSums = {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16};
constexpr std::array kTypes = {DataType::kBytes, DataType::kFloat32, DataType::kFloat16,
                               DataType::kBfloat16};
const std::vector<std::size_t> kSizes = {0, 1, 17, 1003};
constexpr std::size_t kLarge = 600'011;

struct Param {
  test::Backend backend;
  unsigned ranks;

  friend std::ostream& operator<<(std::ostream& out, const Param& param) {
    return out << param.backend.name << ", " << param.ranks << " ranks";
  }
};

class GroupContract : public ::testing::TestWithParam<Param> {
 protected:
  template <class Work>
  void on_every_rank(const Work& work) {
    on_topology({.machines = GetParam().ranks}, work);
  }
  template <class Work>
  void on_topology(const Topology& topology, const Work& work) {
    const test::Backend& backend = GetParam().backend;
    if (!backend.makes(topology)) {
      GTEST_SKIP() << topology.workers() << " workers cannot be made of a job of "
                   << backend.processes << " processes; another job of the suite has that many";
    }
    test::World world = backend.make_world(topology);
    ASSERT_FALSE(world.empty());
    test::run_workers(world, [&](Group& group) {
      ASSERT_EQ(group.size(), topology.workers());
      work(group);
    });
  }
};

std::vector<Param> params() {
  std::vector<Param> all;
  for (const test::Backend& backend : test::group_backends()) {
    for (const unsigned ranks : {1U, 2U, 3U, 4U, 7U, 8U}) {
      // Some tests put one worker on a machine, others two or three.
      const bool possible = backend.processes == 0 || backend.processes == ranks ||
                            backend.processes == 2 * ranks || backend.processes == 3 * ranks;
      if (possible) all.push_back({backend, ranks});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Backends, GroupContract, ::testing::ValuesIn(params()),
                         [](const auto& param_info) {
                           return param_info.param.backend.name + "_" +
                                  std::to_string(param_info.param.ranks);
                         });

std::vector<double> sums_of(DataType type, unsigned ranks, std::size_t n) {
  std::vector<double> sums(n);
  for (std::size_t i = 0; i < n; ++i) sums[i] = sum_at(type, ranks, i);
  return sums;
}

void check_all_reduce(Group& group, DataType type, const std::vector<double>& sums) {
  const auto want = [&](std::size_t i) { return sums[i]; };
  const std::string what = std::string(type_name(type)) + " all-reduce";
  const Values in = values_of(type, group.rank(), sums.size());
  Values out(type, sums.size());
  Status status = group.run({.kind = CollectiveKind::kAllReduce,
                             .type = type,
                             .in = in.bytes(),
                             .out = out.bytes(),
                             .tensor = what});
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  expect_values(out, want, what);
  Values both = in;
  status = group.run({.kind = CollectiveKind::kAllReduce,
                      .type = type,
                      .in = both.bytes(),
                      .out = both.bytes(),
                      .tensor = what});
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  expect_values(both, want, what + " in place");
}

TEST_P(GroupContract, AllReduceIsTheSum) {
  on_every_rank([](Group& group) {
    for (const DataType type : kSums) {
      for (const std::size_t n : kSizes) {
        check_all_reduce(group, type, sums_of(type, group.size(), n));
      }
    }
  });
}

TEST_P(GroupContract, AllReduceOfSomeMegabytesIsTheSum) {
  for (const DataType type : kSums) {
    const std::vector<double> sums = sums_of(type, GetParam().ranks, kLarge);
    on_every_rank([&](Group& group) { check_all_reduce(group, type, sums); });
  }
}

TEST_P(GroupContract, AllReduceOfGradientsIsNearTheExactSumAndTheSameOnEveryRank) {
  on_every_rank([](Group& group) {
    constexpr std::size_t kCount = 10'007;
    std::vector<double> exact(kCount);
    std::vector<double> sizes(kCount);
    for (unsigned rank = 0; rank < group.size(); ++rank) {
      const std::vector<float> other = test::gradient(kCount, rank + 1);
      for (std::size_t i = 0; i < kCount; ++i) {
        exact[i] += static_cast<double>(other[i]);
        sizes[i] += std::fabs(static_cast<double>(other[i]));
      }
    }
    const std::vector<float> in = test::gradient(kCount, group.rank() + 1);
    std::vector<float> out(kCount);
    ASSERT_TRUE(group
                    .run({.kind = CollectiveKind::kAllReduce,
                          .type = DataType::kFloat32,
                          .in = test::bytes_of(in),
                          .out = test::bytes_of(out)})
                    .is_ok());
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(static_cast<double>(out[i]), exact[i], group.size() * 0x1.0p-24 * sizes[i]) << i;
    }
    expect_same_everywhere(group, test::bytes_of(out));
  });
}

TEST_P(GroupContract, TwoByteFloatsAreSummedInRankOrderAndRoundedOnce) {
  on_every_rank([](Group& group) {
    if (group.size() < 3) return;
    // Beside rank 0's large number the small ones vanish in float32, each by itself; then the last
    // rank takes the large one back. Any other order, or a rounding in between, leaves something.
    struct Case {
      DataType type;
      double large;
      double small;
    };
    for (const auto& [type, large, small] : {Case{DataType::kBfloat16, 0x1.0p24, 1.0},
                                             Case{DataType::kFloat16, 0x1.0p15, 0x1.0p-10}}) {
      const bool first = group.rank() == 0;
      const bool last = group.rank() == group.size() - 1;
      Values in(type, 100);
      for (std::size_t i = 0; i < 100; ++i) in.set(i, first ? large : last ? -large : small);
      Values out(type, 100);
      const Status status = group.run(
          {.kind = CollectiveKind::kAllReduce, .type = type, .in = in.bytes(), .out = out.bytes()});
      ASSERT_TRUE(status.is_ok()) << status.to_string();
      expect_values(
          out, [](std::size_t) { return 0.0; }, "rank order");
    }
  });
}

TEST_P(GroupContract, ReduceScatterLeavesEachRankItsPieceOfTheSum) {
  on_every_rank([](Group& group) {
    const unsigned ranks = group.size();
    for (const DataType type : kSums) {
      for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1003}, kLarge / 8}) {
        for (const bool uneven : {false, true}) {
          const auto counts = uneven ? uneven_counts(ranks, n) : std::vector<std::size_t>(ranks, n);
          const Values in = values_of(type, group.rank(), sum_of(counts, ranks));
          Values out(type, counts[group.rank()]);
          const Status status = group.run({.kind = CollectiveKind::kReduceScatter,
                                           .type = type,
                                           .in = in.bytes(),
                                           .out = out.bytes(),
                                           .counts = uneven ? std::span<const std::size_t>(counts)
                                                            : std::span<const std::size_t>()});
          ASSERT_TRUE(status.is_ok()) << status.to_string();
          const std::size_t first = sum_of(counts, group.rank());
          expect_values(
              out, [&](std::size_t i) { return sum_at(type, ranks, first + i); }, "reduce-scatter");
        }
      }
    }
  });
}

TEST_P(GroupContract, AllGatherAndGatherPutPiecesInRankOrder) {
  on_every_rank([](Group& group) {
    const unsigned ranks = group.size();
    for (const DataType type : kTypes) {
      for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1003}, kLarge / 8}) {
        for (const bool uneven : {false, true}) {
          const auto counts = uneven ? uneven_counts(ranks, n) : std::vector<std::size_t>(ranks, n);
          const auto given =
              uneven ? std::span<const std::size_t>(counts) : std::span<const std::size_t>();
          const std::size_t total = sum_of(counts, ranks);
          const Values in = values_of(type, group.rank(), counts[group.rank()]);
          Values want(type, total);
          for (unsigned rank = 0; rank < ranks; ++rank) {
            for (std::size_t i = 0; i < counts[rank]; ++i) {
              want.set(sum_of(counts, rank) + i, value_at(type, rank, i));
            }
          }
          Values out(type, total);
          Status status = group.run({.kind = CollectiveKind::kAllGather,
                                     .type = type,
                                     .in = in.bytes(),
                                     .out = out.bytes(),
                                     .counts = given});
          ASSERT_TRUE(status.is_ok()) << status.to_string();
          ASSERT_TRUE(std::ranges::equal(out.bytes(), want.bytes())) << "all-gather of " << n;
          const unsigned root = ranks / 2;
          Values at_root(type, group.rank() == root ? total : 0);
          status = group.run({.kind = CollectiveKind::kGather,
                              .type = type,
                              .in = in.bytes(),
                              .out = at_root.bytes(),
                              .counts = given,
                              .root = root});
          ASSERT_TRUE(status.is_ok()) << status.to_string();
          if (group.rank() == root) {
            ASSERT_TRUE(std::ranges::equal(at_root.bytes(), want.bytes())) << "gather of " << n;
          }
        }
      }
    }
  });
}

TEST_P(GroupContract, AllGatherMayFindItsInputInItsOutput) {
  on_every_rank([](Group& group) {
    std::vector<float> out(100 * group.size());
    const std::span mine = std::span(out).subspan(100 * group.rank(), 100);
    std::ranges::fill(mine, static_cast<float>(group.rank() + 1));
    ASSERT_TRUE(group
                    .run({.kind = CollectiveKind::kAllGather,
                          .type = DataType::kFloat32,
                          .in = std::as_bytes(mine),
                          .out = test::bytes_of(out)})
                    .is_ok());
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], static_cast<float>(i / 100 + 1));
  });
}

TEST_P(GroupContract, AllToAllDeliversEachPieceToItsRank) {
  on_every_rank([](Group& group) {
    const unsigned ranks = group.size();
    const unsigned me = group.rank();
    // What `from` sends to `to`, some of it nothing.
    const auto count = [](unsigned from, unsigned to, std::size_t n) {
      return (from + 2 * to) % 4 == 3 ? 0 : n + 3 * from + to;
    };
    for (const DataType type : kTypes) {
      for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1003}, kLarge / 8}) {
        for (const bool uneven : {false, true}) {
          std::vector<std::size_t> sends;
          std::vector<std::size_t> receives;
          for (unsigned rank = 0; rank < ranks; ++rank) {
            sends.push_back(uneven ? count(me, rank, n) : n);
            receives.push_back(uneven ? count(rank, me, n) : n);
          }
          Values in(type, sum_of(sends, ranks));
          Values want(type, sum_of(receives, ranks));
          for (unsigned rank = 0; rank < ranks; ++rank) {
            for (std::size_t i = 0; i < sends[rank]; ++i) {
              in.set(sum_of(sends, rank) + i, value_at(type, me * ranks + rank, i));
            }
            for (std::size_t i = 0; i < receives[rank]; ++i) {
              want.set(sum_of(receives, rank) + i, value_at(type, rank * ranks + me, i));
            }
          }
          Values out(type, want.size());
          Collective call{.kind = CollectiveKind::kAllToAll,
                          .type = type,
                          .in = in.bytes(),
                          .out = out.bytes()};
          if (uneven) {
            call.counts = sends;
            call.receive_counts = receives;
          }
          const Status status = group.run(call);
          ASSERT_TRUE(status.is_ok()) << status.to_string();
          ASSERT_TRUE(std::ranges::equal(out.bytes(), want.bytes())) << "all-to-all of " << n;
        }
      }
    }
  });
}

TEST_P(GroupContract, ReduceAndBroadcastWorkFromEveryRoot) {
  on_every_rank([](Group& group) {
    const unsigned ranks = group.size();
    for (unsigned root = 0; root < ranks; ++root) {
      const bool at_root = group.rank() == root;
      for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{1003},
                                  root == 0 ? kLarge : std::size_t{5}}) {
        for (const DataType type : kSums) {
          const Values in = values_of(type, group.rank(), n);
          Values out(type, at_root ? n : 0);
          const Status status = group.run({.kind = CollectiveKind::kReduce,
                                           .type = type,
                                           .in = in.bytes(),
                                           .out = out.bytes(),
                                           .root = root});
          ASSERT_TRUE(status.is_ok()) << status.to_string();
          expect_values(
              out, [&](std::size_t i) { return sum_at(type, ranks, i); }, "reduce");
        }
        for (const DataType type : kTypes) {
          const Values in = values_of(type, root, at_root ? n : 0);
          Values out(type, at_root ? 0 : n);
          const Status status = group.run({.kind = CollectiveKind::kBroadcast,
                                           .type = type,
                                           .in = in.bytes(),
                                           .out = out.bytes(),
                                           .root = root});
          ASSERT_TRUE(status.is_ok()) << status.to_string();
          expect_values(
              out, [&](std::size_t i) { return value_at(type, root, i); }, "broadcast");
        }
      }
    }
  });
}

TEST_P(GroupContract, SeveralCallsInFlightEndInTheirOrder) {
  on_every_rank([](Group& group) {
    constexpr std::size_t kCalls = 24;
    std::vector<Values> ins;
    std::vector<Values> outs;
    for (std::size_t i = 0; i < kCalls; ++i) {
      ins.push_back(values_of(DataType::kFloat32, group.rank(), 100 * i * i));
      outs.emplace_back(DataType::kFloat32, 100 * i * i);
    }
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < kCalls; ++i) {
      const auto ticket = group.start({.kind = CollectiveKind::kAllReduce,
                                       .type = DataType::kFloat32,
                                       .in = ins[i].bytes(),
                                       .out = outs[i].bytes(),
                                       .tensor = "tensor " + std::to_string(i)});
      ASSERT_TRUE(ticket.has_value());
      tickets.push_back(*ticket);
      if (i % 5 == 4) {
        ASSERT_TRUE(group.start({.kind = CollectiveKind::kBarrier}).has_value());
      }
    }
    ASSERT_TRUE(group.wait(tickets[kCalls / 2]).is_ok());
    EXPECT_TRUE(group.done(tickets[0])) << "an earlier call was not done";
    for (std::size_t i = kCalls; i-- > 0;) {
      ASSERT_TRUE(group.wait(tickets[i]).is_ok());
      expect_values(
          outs[i], [&](std::size_t k) { return sum_at(DataType::kFloat32, group.size(), k); },
          "call " + std::to_string(i));
    }
  });
}

/// What all ranks together send in one call: bytes to other machines and within them.
SentBytes sent_by_all(Group& group, const Collective& call) {
  const SentBytes before = group.sent_bytes();
  EXPECT_TRUE(group.run(call).is_ok());
  const SentBytes after = group.sent_bytes();
  const std::array<std::uint64_t, 2> mine{after.intra - before.intra, after.inter - before.inter};
  std::vector<std::uint64_t> all(2 * group.size());
  EXPECT_TRUE(group
                  .run({.kind = CollectiveKind::kAllGather,
                        .in = std::as_bytes(std::span(mine)),
                        .out = test::bytes_of(all)})
                  .is_ok());
  SentBytes sum;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    sum.intra += all[i];
    sum.inter += all[i + 1];
  }
  return sum;
}

TEST_P(GroupContract, CountsExactlyTheBytesThatItsFormulasSay) {
  on_every_rank([](Group& group) {
    const std::uint64_t p = group.size();
    for (const DataType type : kSums) {
      const std::uint64_t unit = size_of(type);
      for (const std::size_t n : {std::size_t{1}, std::size_t{1003}, std::size_t{100'000}}) {
        const std::uint64_t b = n * unit;
        Values in(type, n * p);
        Values out(type, n * p);
        const auto sent = [&](CollectiveKind kind, std::size_t in_count, std::size_t out_count) {
          const SentBytes all = sent_by_all(group, {.kind = kind,
                                                    .type = type,
                                                    .in = in.bytes().first(in_count * unit),
                                                    .out = out.bytes().first(out_count * unit)});
          EXPECT_EQ(all.intra, 0U) << "every rank is a machine of its own";
          return all.inter;
        };
        EXPECT_EQ(sent(CollectiveKind::kAllReduce, n, n), 2 * (p - 1) * b);
        EXPECT_EQ(sent(CollectiveKind::kReduceScatter, n * p, n), (p - 1) * b * p);
        EXPECT_EQ(sent(CollectiveKind::kAllGather, n, n * p), (p - 1) * b * p);
        EXPECT_EQ(sent(CollectiveKind::kAllToAll, n * p, n * p), (p - 1) * b * p);
        EXPECT_EQ(sent(CollectiveKind::kGather, n, group.rank() == 0 ? n * p : 0), (p - 1) * b);
        EXPECT_EQ(
            sent(CollectiveKind::kBroadcast, group.rank() == 0 ? n : 0, group.rank() == 0 ? 0 : n),
            (p - 1) * b);
        // Float32 goes up a tree; two-byte floats as shards to those who sum, and from there to the
        // root, which has its own.
        const std::uint64_t root_shard =
            shard_range(n, static_cast<std::uint32_t>(p), 0).count * unit;
        EXPECT_EQ(sent(CollectiveKind::kReduce, n, group.rank() == 0 ? n : 0),
                  (p - 1) * b + (type == DataType::kFloat32 ? 0 : b - root_shard));
        EXPECT_EQ(sent(CollectiveKind::kBarrier, 0, 0), 0U);
      }
    }
  });
}

TEST_P(GroupContract, TellsLinksInsideAMachineFromThoseBetween) {
  const unsigned machines = GetParam().ranks;
  on_topology({.machines = machines, .workers_per_machine = 2}, [&](Group& group) {
    const std::uint64_t workers = group.size();
    Values in(DataType::kBytes, 10 * workers);
    Values out(DataType::kBytes, 10 * workers);
    const SentBytes all = sent_by_all(
        group, {.kind = CollectiveKind::kAllToAll, .in = in.bytes(), .out = out.bytes()});
    EXPECT_EQ(all.intra, workers * 10);
    EXPECT_EQ(all.inter, workers * (workers - 2) * 10);
  });
}

void check_subgroups(Group& world, const Topology& topology) {
  const auto check = [&](const std::vector<unsigned>& ranks) {
    auto group = world.subgroup(ranks);
    ASSERT_TRUE(group.has_value()) << group.error().to_string();
    ASSERT_EQ((*group)->size(), ranks.size());
    ASSERT_EQ(ranks[(*group)->rank()], world.rank());
    EXPECT_EQ((*group)->backend(), world.backend());
    const Values in = values_of(DataType::kFloat32, world.rank(), 501);
    Values out(DataType::kFloat32, 501);
    const Status status = (*group)->run({.kind = CollectiveKind::kAllReduce,
                                         .type = DataType::kFloat32,
                                         .in = in.bytes(),
                                         .out = out.bytes()});
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    const auto want = [&](std::size_t i) {
      double sum = 0.0;
      for (const unsigned rank : ranks) sum += value_at(DataType::kFloat32, rank, i);
      return sum;
    };
    expect_values(out, want, "sub-group");
  };
  check(topology.intra_ranks(world.rank()));
  check(topology.inter_ranks(world.rank()));
  std::vector<unsigned> reversed(world.size());
  std::iota(reversed.rbegin(), reversed.rend(), 0U);
  check(reversed);
  check(reversed);  // the same list again is a group of its own
  check({world.rank()});
  EXPECT_EQ(world.subgroup({}).error().code(), Code::kInvalidArgument);
}

TEST_P(GroupContract, SubgroupsOfTwoPerMachineAndAcrossMachinesSumAmongThemselves) {
  const Topology topology{.machines = GetParam().ranks, .workers_per_machine = 2};
  on_topology(topology, [&](Group& world) { check_subgroups(world, topology); });
}

TEST_P(GroupContract, SubgroupsOfThreePerMachineAndAcrossMachinesSumAmongThemselves) {
  const Topology topology{.machines = GetParam().ranks, .workers_per_machine = 3};
  on_topology(topology, [&](Group& world) { check_subgroups(world, topology); });
}

TEST_P(GroupContract, RefusesCallsThatDoNotFitAndLivesOn) {
  on_every_rank([](Group& group) {
    std::vector<float> values(8);
    const auto bytes = test::bytes_of(values);
    EXPECT_EQ(
        group.start({.kind = CollectiveKind::kAllReduce, .in = bytes, .out = bytes}).error().code(),
        Code::kInvalidArgument);
    EXPECT_EQ(
        group.start({.kind = CollectiveKind::kBroadcast, .root = group.size()}).error().code(),
        Code::kInvalidArgument);
    EXPECT_EQ(group.wait(1).code(), Code::kInvalidArgument) << "no call was started";
    check_all_reduce(group, DataType::kFloat32, sums_of(DataType::kFloat32, group.size(), 8));
  });
}

}  // namespace
}  // namespace gradpress
