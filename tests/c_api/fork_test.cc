// A forked child has copies of the handles, and no right to use them.
#include <gradpress/c_api.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "c_api/model.h"

namespace gradpress {
namespace {

using test::call;

/// Counts what is not as it should be: the child's exit code.
int use_in_child(gradpress_engine* engine, gradpress_group* group, gradpress_codec* codec) {
  int wrong = 0;
  const auto refused = [&wrong](const test::Outcome& outcome) {
    if (outcome.code != GRADPRESS_INVALID_ARGUMENT || !outcome.tells("forked child")) ++wrong;
  };
  std::vector<float> values(2400);
  std::uint64_t ticket = 0;
  gradpress_text* text = nullptr;
  const gradpress_call barrier = test::call_of(GRADPRESS_BARRIER);
  refused(test::hand_over(engine, 0, values));
  refused(call(gradpress_engine_wait, engine, nullptr));
  refused(call(gradpress_engine_next, engine, std::int64_t{-1}, &text));
  refused(call(gradpress_engine_set_codec, engine, "none"));
  refused(call(gradpress_group_start, group, &barrier, &ticket));
  refused(call(gradpress_group_wait, group, std::uint64_t{1}));
  refused(call(gradpress_codec_load_residual, codec, values.data(), std::uint64_t{2400}));
  gradpress_engine* other = nullptr;
  refused(call(gradpress_engine_make, group, "[]", "{}", &other));
  if (gradpress_group_size(group) != 0) ++wrong;
  gradpress_engine_close(engine);
  gradpress_engine_free(engine);
  gradpress_group_free(group);
  gradpress_codec_free(codec);
  return wrong;
}

TEST(Fork, TheChildDoesNothingAndTheParentGoesOn) {
  auto groups = test::local_groups(2);
  auto spare = test::local_groups(1);
  std::vector<test::EngineHandle> engines(2);
  std::thread other(
      [&] { engines[1] = test::make_engine(std::move(groups[1]), test::model_json(), "{}"); });
  engines[0] = test::make_engine(std::move(groups[0]), test::model_json(), "{}");
  other.join();
  gradpress_codec* codec = nullptr;
  const std::uint64_t elements = 2400;
  ASSERT_TRUE(call(gradpress_codec_make, "topk:0.1", &elements, std::size_t{1}, "{}", &codec));
  const test::CodecHandle owned(codec);

  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) std::_Exit(use_in_child(engines[0].get(), spare[0].get(), codec));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);

  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      test::EngineGradients gradients = test::gradients_of(rank, 0);
      const test::Outcome done = test::run_c_step(engines[rank].get(), gradients);
      EXPECT_TRUE(done) << done;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(gradpress_group_size(spare[0].get()), 1U);
}

}  // namespace
}  // namespace gradpress
