#include "engine/recorder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "plan/trace.h"

namespace gradpress::engine {
namespace {

using std::chrono::microseconds;

std::vector<TensorSpec> three() {
  return {{.name = "a", .shape = Shape{4}},
          {.name = "b", .shape = Shape{2, 3}},
          {.name = "c", .shape = Shape{}}};
}

TEST(Recorder, LeavesOutTheTimeSpentInTheEngine) {
  TraceRecorder recorder(3);
  recorder.end_step(microseconds(5), microseconds(10));
  recorder.start(1);
  recorder.ready(2, microseconds(110), microseconds(160));  // 50 in the engine
  recorder.ready(0, microseconds(180), microseconds(180));
  recorder.end_step(microseconds(200), microseconds(300));
  EXPECT_FALSE(recorder.is_recording());
  const RecordedTrace trace = recorder.trace(three());
  EXPECT_EQ(trace.steps, 1U);
  EXPECT_DOUBLE_EQ(trace.forward_us, 100.0);
  ASSERT_EQ(trace.tensors.size(), 3U);
  EXPECT_EQ(trace.tensors[0].name, "c");
  EXPECT_EQ(trace.tensors[1].name, "a");
  EXPECT_NEAR(trace.tensors[1].ready_gap_us, 20.0, 1e-3);
  EXPECT_EQ(trace.tensors[2].name, "b");
  EXPECT_NEAR(trace.tensors[2].ready_gap_us, 20.0, 1e-3) << "unused: ready with wait()";
}

TEST(Recorder, GivesMeansAndSpreadsInTheOrderOfReadiness) {
  TraceRecorder recorder(3);
  recorder.start(2);
  for (const int gap : {10, 30}) {
    recorder.ready(1, microseconds(1000), microseconds(1000));
    recorder.ready(0, microseconds(1000 + gap), microseconds(1000 + gap));
    recorder.ready(2, microseconds(1100), microseconds(1100));
    recorder.end_step(microseconds(1100), microseconds(1200));
  }
  // Recording has ended: this changes nothing.
  recorder.ready(1, microseconds(5000), microseconds(5000));
  const RecordedTrace trace = recorder.trace(three());
  EXPECT_EQ(trace.steps, 2U);
  EXPECT_EQ(trace.tensors[0].name, "b");
  EXPECT_EQ(trace.tensors[1].name, "a");
  EXPECT_NEAR(trace.tensors[1].ready_gap_us, 20.0, 1e-3);
  EXPECT_NEAR(trace.tensors[1].spread_us, 10.0, 1e-3);
}

TEST(Recorder, StopsEarlyAndKeepsWhatItHas) {
  TraceRecorder recorder(3);
  recorder.end_step(microseconds(0), microseconds(1000));
  recorder.start(10);
  recorder.ready(0, microseconds(1100), microseconds(1100));
  recorder.end_step(microseconds(1200), microseconds(1300));
  recorder.stop();
  EXPECT_FALSE(recorder.is_recording());
  // A long pause between the steps is no forward any more.
  recorder.ready(0, microseconds(9000), microseconds(9000));
  recorder.end_step(microseconds(9100), microseconds(9200));
  const RecordedTrace trace = recorder.trace(three());
  EXPECT_EQ(trace.steps, 1U);
  EXPECT_DOUBLE_EQ(trace.forward_us, 100.0);
}

TEST(Recorder, WritesTheTraceFormat) {
  TraceRecorder recorder(3);
  const std::string file =
      (std::filesystem::temp_directory_path() / "gradpress_recorder_test.json").string();
  EXPECT_EQ(write_trace(file, "tiny", recorder.trace(three())).code(), Code::kInvalidArgument);
  recorder.start(1);
  for (std::size_t i = 0; i < 3; ++i) recorder.ready(i, microseconds(10 * i), microseconds(10 * i));
  recorder.end_step(microseconds(30), microseconds(40));
  ASSERT_TRUE(write_trace(file, "tiny", recorder.trace(three())).is_ok());
  const auto trace = plan::read_trace(file);
  std::filesystem::remove(file);
  ASSERT_TRUE(trace.has_value()) << trace.error().message();
  EXPECT_EQ(trace->model, "tiny");
  ASSERT_EQ(trace->tensors.size(), 3U);
  EXPECT_EQ(trace->tensors[1].shape, (Shape{2, 3}));
  EXPECT_NEAR(trace->tensors[1].ready_gap_us, 10.0, 1e-3);
}

}  // namespace
}  // namespace gradpress::engine
