// Counts the allocations of the whole process: steps make none.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <new>
#include <vector>

#include "sync/message.h"
#include "sync/workers.h"

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

namespace gradpress::sync {
namespace {

/// Allocations of the whole world in 20 steps, after 20 others.
std::size_t allocations_of(const MessageSpec& spec) {
  constexpr unsigned kRanks = 4;
  test::Workers workers({.machines = 2, .workers_per_machine = 2});
  std::barrier together(kRanks);
  std::size_t before = 0;
  std::size_t made = 0;
  workers.run([&](Fabric& fabric) {
    auto message = Message::make(spec, fabric);
    ASSERT_TRUE(message.has_value());
    std::vector<std::vector<float>> values;
    std::vector<std::span<float>> spans;
    for (const Member& member : spec.members) values.emplace_back(member.shape.elements(), 1.0F);
    for (auto& value : values) spans.emplace_back(value);
    for (std::uint64_t step = 0; step < 40; ++step) {
      if (step == 20) {
        together.arrive_and_wait();
        if (fabric.rank() == 0) before = allocations.load();
        together.arrive_and_wait();
      }
      for (std::size_t i = 0; i < values.size(); ++i) values[i][0] = static_cast<float>(step + i);
      ASSERT_TRUE((*message)->run(step, spans).has_value());
    }
    together.arrive_and_wait();
    if (fabric.rank() == 0) made = allocations.load() - before;
    together.arrive_and_wait();
  });
  return made;
}

TEST(Allocation, StepsMakeNone) {
  const std::vector<Shape> shapes = {Shape{4000}, Shape{7, 9}};
  for (const auto& [codec, path] : std::vector<std::pair<std::string, std::string>>{
           {"none", "allreduce@flat"},
           {"topk:0.1", "Comp@host > allgather@flat > Decomp@host"},
           {"efsign",
            "Comp@host > alltoall@intra1 > alltoall@inter > Decomp@host > Comp@host > "
            "allgather@inter > allgather@intra2 > Decomp@host"},
           {"int8", "reduce@intra1 > Comp@host > allgather@inter > Decomp@host > broadcast@intra2"},
           {"fp16", "Comp@host > reduce-scatter@flat > Decomp@host > allgather@flat"}}) {
    // Of 80 steps. A rank that runs further ahead of the others than any did before makes a queue
    // grow once more, so a few are allowed.
    EXPECT_LE(
        allocations_of({.members = test::members(codec, shapes), .option = test::option(path)}),
        10U)
        << codec << " by " << path;
  }
  EXPECT_LE(allocations_of({.members = test::members("acpsgd:2", {Shape{40, 30}, Shape{7, 9}}),
                            .option = test::option("Comp@host > allreduce@flat > Decomp@host")}),
            10U);
}

}  // namespace
}  // namespace gradpress::sync
