// Messages of one collective take turns with a pool's buffers.
#include "sync/buffer_pool.h"

#include <gtest/gtest.h>

#include <vector>

#include "plan/option.h"
#include "sync/workers.h"

namespace gradpress::sync {
namespace {

using test::Gradients;
using test::Workers;

TEST(BufferPool, GivesWhatWasGivenBackLastWithRoomForTheLargest) {
  BufferPool pool;
  pool.announce(100);
  pool.announce(4000);
  pool.announce(7);
  pool.reserve(2);
  Buffer<std::byte> first = pool.take();
  EXPECT_EQ(first.size(), 4000U);
  const std::byte* memory = first.data();
  pool.give(std::move(first));
  EXPECT_EQ(pool.take().data(), memory);
}

TEST(BufferPool, MessagesOfDifferentSizesUseOneBufferAndGiveItBack) {
  Workers workers({.machines = 2, .workers_per_machine = 1});
  std::vector<std::string> wrong(workers.size());
  workers.run([&](Fabric& fabric) {
    const auto pool = std::make_shared<BufferPool>();
    std::vector<std::unique_ptr<Message>> messages;
    for (const std::uint64_t elements : {300U, 7U, 120U}) {
      MessageSpec spec{.option = *plan::parse_option("allreduce@flat")};
      for (std::uint64_t member = 0; member < 2; ++member) {
        spec.members.push_back({.name = std::string("t").append(std::to_string(member)),
                                .shape = Shape::flat(elements),
                                .tensor = member});
      }
      auto made = Message::make(spec, fabric, {.pool = pool});
      if (!made) wrong[fabric.rank()] = made.error().to_string();
      if (made) messages.push_back(std::move(*made));
    }
    pool->reserve(1);
    Buffer<std::byte> only = pool->take();
    const std::byte* memory = only.data();
    pool->give(std::move(only));
    for (std::uint64_t step = 0; step < 3; ++step) {
      for (const auto& message : messages) {
        const auto elements = message->spec().members.front().shape.elements();
        const auto value = static_cast<float>(fabric.rank() + step);
        Gradients gradients(
            {std::vector<float>(elements, value), std::vector<float>(elements, -value)});
        const auto outcome = message->run(step, gradients.spans());
        if (!outcome) wrong[fabric.rank()] = outcome.error().to_string();
        const float mean = 0.5F + static_cast<float>(step);
        if (gradients[0] != std::vector<float>(elements, mean) ||
            gradients[1] != std::vector<float>(elements, -mean)) {
          wrong[fabric.rank()] = "not the mean";
        }
      }
    }
    if (pool->take().data() != memory) wrong[fabric.rank()] = "the buffer was not given back";
  });
  for (const std::string& text : wrong) EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace gradpress::sync
