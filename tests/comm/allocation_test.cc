// Counts the allocations of the whole process: after the first few calls there are none.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <new>
#include <vector>

#include "comm/local/local.h"
#include "support/workers.h"

namespace {
std::atomic<std::size_t> allocations = 0;
}

// The two that all other forms end in; aligned ones are not used by what is tested.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace gradpress::comm {
namespace {

TEST(Allocation, CallsAllocateNothingAfterTheFirstFew) {
  constexpr unsigned kRanks = 4;
  auto world = make_local_world({.topology = {.machines = 2, .workers_per_machine = 2}});
  ASSERT_TRUE(world.has_value());
  std::barrier together(kRanks);
  std::size_t before = 0;
  test::run_workers(*world, [&](Group& group) {
    std::vector<float> in(600000);
    std::vector<float> out(600000);
    std::vector<float> quarter(150000);
    const std::array<std::size_t, kRanks> counts{150000, 150000, 150000, 150000};
    const std::array<Collective, 5> calls{{
        {.kind = CollectiveKind::kAllReduce, .in = test::bytes_of(in), .out = test::bytes_of(out)},
        {.kind = CollectiveKind::kReduceScatter,
         .in = test::bytes_of(in),
         .out = test::bytes_of(quarter),
         .counts = counts},
        {.kind = CollectiveKind::kAllGather,
         .in = test::bytes_of(quarter),
         .out = test::bytes_of(out)},
        {.kind = CollectiveKind::kAllToAll, .in = test::bytes_of(in), .out = test::bytes_of(out)},
        {.kind = CollectiveKind::kReduce, .in = test::bytes_of(in), .out = test::bytes_of(out)},
    }};
    for (int turn = 0; turn < 30; ++turn) {
      if (turn == 20) {
        together.arrive_and_wait();
        if (group.rank() == 0) before = allocations.load();
        together.arrive_and_wait();
      }
      for (Collective call : calls) {
        call.type = DataType::kFloat32;
        call.tensor = "a tensor whose name does not fit into a small string";
        ASSERT_TRUE(group.run(call).is_ok());
      }
    }
    together.arrive_and_wait();
    if (group.rank() == 0) {
      // Of 200 calls. A rank that runs further ahead of the others than any did before makes a
      // queue grow once more, so a few are allowed.
      EXPECT_LE(allocations.load() - before, 10U);
    }
    together.arrive_and_wait();
  });
}

}  // namespace
}  // namespace gradpress::comm
