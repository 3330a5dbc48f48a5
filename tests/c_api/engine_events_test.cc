// What an engine reports, when, and what it refuses without harm.
#include <gradpress/c_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "c_api/model.h"

namespace gradpress {
namespace {

using test::call;
using test::EngineGradients;
using test::gradients_of;
using test::next_event;
using test::on_every_c_rank;

/// A world of one: nobody to wait for.
test::EngineHandle lone_engine(const std::string& options = "{}") {
  return test::make_engine(std::move(test::local_groups(1).front()), test::model_json(), options);
}

TEST(EngineEvents, ComeInOrderAndEndWithClosed) {
  const auto engine = lone_engine(R"({"codec": "topk:0.05"})");
  EXPECT_EQ(next_event(engine.get())["event"], "log") << "one worker: not in effect";
  std::string none;
  EXPECT_EQ(test::call_for_text(none, gradpress_engine_next, engine.get(), std::int64_t{0}).code,
            GRADPRESS_TIMED_OUT);
  std::vector<EngineGradients> steps;
  for (unsigned step = 0; step < 3; ++step) steps.push_back(gradients_of(0, step));
  std::vector<std::uint32_t> tensors = {4};
  std::vector<std::uint64_t> offsets = {0};
  std::uint32_t last = 0;
  ASSERT_TRUE(call(gradpress_engine_layout, engine.get(), tensors.data(), offsets.data(),
                   std::size_t{1}, &last));
  // All three are handed over before the first is reported.
  for (EngineGradients& gradients : steps) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(test::hand_over(engine.get(), i, gradients[i]));
    }
    ASSERT_TRUE(
        call(gradpress_engine_push, engine.get(), last, gradients[4].data(), GRADPRESS_FLOAT32, 1));
  }
  for (unsigned step = 0; step < 3; ++step) {
    const Json event = next_event(engine.get());
    EXPECT_EQ(event["event"], "step");
    EXPECT_EQ(event["step"], step);
    EXPECT_EQ(event["finite"], true);
    EXPECT_EQ(event["unused"], 0);
    EXPECT_EQ(event["suspended"], false);
    EXPECT_EQ(event["sent_bytes"], event["promised_bytes"]);
    EXPECT_TRUE(event["exposed_us"].is_number());
  }
  gradpress_engine_close(engine.get());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next_event(engine.get())["event"], "closed");
  EngineGradients gradients = gradients_of(0, 0);
  EXPECT_REFUSED(test::hand_over(engine.get(), 0, gradients[0]), "closed");
  EXPECT_REFUSED(call(gradpress_engine_wait, engine.get(), nullptr), "closed");
  EXPECT_REFUSED(call(gradpress_engine_set_codec, engine.get(), "none"), "closed");
  gradpress_engine_close(engine.get());
}

TEST(EngineEvents, CloseEndsAWaitForTheNext) {
  const auto engine = lone_engine();
  std::atomic<bool> waits = false;
  std::thread waiting([&] {
    EXPECT_EQ(next_event(engine.get())["event"], "log") << "one worker: not in effect";
    waits = true;
    EXPECT_EQ(next_event(engine.get())["event"], "closed");
  });
  while (!waits) std::this_thread::yield();
  gradpress_engine_close(engine.get());
  waiting.join();
}

TEST(EngineEvents, CloseLetsEveryoneWhoWaitsGo) {
  auto engine = lone_engine();
  std::atomic<int> came = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      ++came;
      for (Json event; event["event"] != "closed";) event = next_event(engine.get());
    });
  }
  threads.emplace_back([&] {
    ++came;
    gradpress_engine_close(engine.get());
  });
  while (came < 4) std::this_thread::yield();
  gradpress_engine_close(engine.get());
  for (std::thread& thread : threads) thread.join();
}

TEST(EngineEvents, ARefusedBucketLeavesTheStepAsItWas) {
  const auto engine = lone_engine();
  EngineGradients gradients = gradients_of(0, 0);
  const EngineGradients want = gradients;
  ASSERT_TRUE(test::hand_over(engine.get(), 0, gradients[0]));
  EXPECT_REFUSED(test::hand_over(engine.get(), 0, gradients[0]),
                 "fc.weight was handed over before");
  EXPECT_REFUSED(test::hand_over(engine.get(), 5, gradients[0]), "wanted a tensor below 5, got 5");
  EXPECT_REFUSED(test::hand_over(engine.get(), 1, gradients[0]),
                 "fc.bias: wanted 40 elements, got 2400");
  EXPECT_REFUSED(call(gradpress_engine_wait, engine.get(), nullptr),
                 "without 4 of 5 tensors, the first is fc.bias");
  EXPECT_REFUSED(
      call(gradpress_engine_push, engine.get(), 77U, gradients[1].data(), GRADPRESS_FLOAT32, 0),
      "layout");
  EXPECT_REFUSED(call(gradpress_engine_push, engine.get(), 1U, gradients[1].data(), 9, 0), "type");
  EXPECT_REFUSED(call(gradpress_engine_push, engine.get(), 1U, nullptr, GRADPRESS_FLOAT32, 0),
                 "memory");
  EXPECT_REFUSED(call(gradpress_engine_push, engine.get(), 1U,
                      reinterpret_cast<char*>(gradients[1].data()) + 1, GRADPRESS_FLOAT32, 0),
                 "aligned");
  EXPECT_REFUSED(call(gradpress_engine_set_codec, engine.get(), "none"), "between steps");
  for (std::uint32_t i = 1; i < gradients.size(); ++i) {
    ASSERT_TRUE(test::hand_over(engine.get(), i, gradients[i]));
  }
  ASSERT_TRUE(call(gradpress_engine_wait, engine.get(), nullptr));
  EXPECT_TRUE(test::same_bits(gradients, want)) << "the mean of one";
}

TEST(EngineEvents, LayoutsAreChecked) {
  const auto engine = lone_engine();
  std::uint32_t number = 77;
  const std::vector<std::uint32_t> twice = {1, 1};
  const std::vector<std::uint32_t> unknown = {1, 12};
  const std::vector<std::uint64_t> offsets = {0, 40};
  EXPECT_REFUSED(call(gradpress_engine_layout, engine.get(), twice.data(), offsets.data(),
                      std::size_t{2}, &number),
                 "fc.bias");
  EXPECT_REFUSED(call(gradpress_engine_layout, engine.get(), unknown.data(), offsets.data(),
                      std::size_t{2}, &number),
                 "got 12");
  EXPECT_REFUSED(call(gradpress_engine_layout, engine.get(), unknown.data(), offsets.data(),
                      std::size_t{0}, &number),
                 "layout");
  EXPECT_EQ(number, 77U) << "outputs are unchanged on failure";
}

TEST(EngineEvents, TensorsMarkedAsUnusedNeedNotCome) {
  on_every_c_rank("{}", [](unsigned rank, gradpress_engine* engine) {
    EngineGradients gradients = gradients_of(rank, 0);
    for (std::uint32_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(test::hand_over(engine, i, gradients[i]));
    }
    const std::uint32_t unused = 4;
    ASSERT_TRUE(call(gradpress_engine_unused, engine, &unused, std::size_t{1}));
    std::string report;
    ASSERT_TRUE(test::call_for_text(report, gradpress_engine_wait, engine));
    EXPECT_EQ(Json::parse(report)["unused"], 1) << report;
  });
}

TEST(EngineEvents, AFailureIsReportedOnceAndReturnedByAllLaterCalls) {
  auto groups = test::local_groups(2);
  std::vector<test::EngineHandle> engines(2);
  std::thread other(
      [&] { engines[1] = test::make_engine(std::move(groups[1]), test::model_json(), "{}"); });
  engines[0] = test::make_engine(std::move(groups[0]), test::model_json(), "{}");
  other.join();
  EngineGradients gradients = gradients_of(0, 0);
  engines[1].reset();  // leaves before the step
  const test::Outcome lost = test::run_c_step(engines[0].get(), gradients);
  EXPECT_EQ(lost.code, GRADPRESS_PEER_LOST) << lost;
  EXPECT_TRUE(lost.tells("rank 1 has left the group")) << lost;
  for (const test::Outcome& later : {test::hand_over(engines[0].get(), 0, gradients[0]),
                                     call(gradpress_engine_wait, engines[0].get(), nullptr),
                                     call(gradpress_engine_set_codec, engines[0].get(), "none")}) {
    EXPECT_EQ(later.code, GRADPRESS_PEER_LOST) << later;
  }
}

TEST(EngineEvents, AFailureIsAnEvent) {
  auto groups = test::local_groups(2);
  std::vector<test::EngineHandle> engines(2);
  std::thread other([&] {
    engines[1] =
        test::make_engine(std::move(groups[1]), test::model_json(), R"({"allow_unused": true})");
  });
  engines[0] =
      test::make_engine(std::move(groups[0]), test::model_json(), R"({"allow_unused": true})");
  other.join();
  engines[1].reset();
  EngineGradients gradients = gradients_of(0, 0);
  std::uint32_t layout = 0;
  const std::uint32_t tensor = 0;
  const std::uint64_t offset = 0;
  ASSERT_TRUE(
      call(gradpress_engine_layout, engines[0].get(), &tensor, &offset, std::size_t{1}, &layout));
  ASSERT_TRUE(call(gradpress_engine_push, engines[0].get(), layout, gradients[0].data(),
                   GRADPRESS_FLOAT32, 1));
  const Json event = next_event(engines[0].get());
  EXPECT_EQ(event["event"], "failed");
  EXPECT_EQ(event["code"], GRADPRESS_PEER_LOST);
  EXPECT_NE(event["message"].get<std::string>().find("rank 1"), std::string::npos) << event;
  gradpress_engine_close(engines[0].get());
  EXPECT_EQ(next_event(engines[0].get())["event"], "closed") << "the failure comes once";
}

TEST(EngineEvents, RanksThatDifferAreToldInTheirOwnWords) {
  auto groups = test::local_groups(2);
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      gradpress_engine* engine = nullptr;
      const test::Outcome made =
          call(gradpress_engine_make, groups[rank].release(), test::model_json().c_str(),
               rank == 0 ? R"({"codec": "acpsgd:4"})" : "{}", &engine);
      EXPECT_EQ(engine, nullptr);
      EXPECT_REFUSED(made, "rank 0 has \"codec acpsgd:4\", rank 1 has \"codec none\"");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradpress
