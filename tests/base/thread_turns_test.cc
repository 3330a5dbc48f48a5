#include "base/thread_turns.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace gradpress {
namespace {

int policy_of_new_thread() {
  int policy = -1;
  std::thread([&] { policy = sched_getscheduler(0); }).join();
  return policy;
}

TEST(ThreadTurns, PatienceIsInheritedAndEnds) {
  ASSERT_EQ(sched_getscheduler(0), SCHED_OTHER);
  {
    const ThreadTurns turns(Turns::kPatient);
    EXPECT_EQ(sched_getscheduler(0), SCHED_BATCH);
    EXPECT_EQ(policy_of_new_thread(), SCHED_BATCH);
  }
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
  EXPECT_EQ(policy_of_new_thread(), SCHED_OTHER);
}

TEST(ThreadTurns, PromptnessKeepsThePolicy) {
  const ThreadTurns turns(Turns::kPrompt);
  EXPECT_EQ(sched_getscheduler(0), SCHED_OTHER);
}

TEST(ThreadTurns, WhoChoseAPolicyKeepsIt) {
  std::thread([] {
    const sched_param none{};
    ASSERT_EQ(sched_setscheduler(0, SCHED_IDLE, &none), 0);
    { const ThreadTurns turns(Turns::kPatient); }
    EXPECT_EQ(sched_getscheduler(0), SCHED_IDLE);
  }).join();
}

}  // namespace
}  // namespace gradpress
