#include "base/ring_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>

namespace gradpress {
namespace {

TEST(RingQueue, IsADequeWhateverTheTurns) {
  RingQueue<int> queue;
  std::deque<int> model;
  // Pushes and pops in changing proportion, so that it grows while wrapped round.
  int next = 0;
  for (int turn = 0; turn < 200; ++turn) {
    for (int i = 0; i < turn % 7; ++i) {
      queue.push_back() = next;
      model.push_back(next++);
    }
    for (int i = 0; i < turn % 5 && !model.empty(); ++i) {
      ASSERT_EQ(queue.front(), model.front());
      queue.pop_front();
      model.pop_front();
    }
    ASSERT_EQ(queue.size(), model.size());
    ASSERT_EQ(queue.empty(), model.empty());
    for (std::size_t i = 0; i < model.size(); ++i) ASSERT_EQ(queue[i], model[i]);
  }
}

TEST(RingQueue, HandsUsedMemoryOn) {
  RingQueue<std::string> queue;
  queue.push_back().assign(1000, 'x');
  const char* memory = queue.front().data();
  queue.pop_front();
  for (int i = 0; i < 3; ++i) {
    queue.push_back();
    queue.pop_front();
  }
  EXPECT_EQ(queue.push_back().data(), memory) << "four slots later the string comes round again";
}

}  // namespace
}  // namespace gradpress
