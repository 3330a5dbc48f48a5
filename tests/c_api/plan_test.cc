// The planner through the C interface.
#include <gradpress/c_api.h>
#include <gradpress/plan.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "c_api/c_calls.h"

namespace gradpress {
namespace {

using test::call;

TEST(CPlans, AreThoseOfThePlanner) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("gradpress_c_plan_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string trace = (folder / "trace.json").string();
  std::ofstream(trace) << R"({"format": "gradpress-trace-1", "model": "two", "forward_us": 1000,
    "tensors": [{"name": "a", "shape": [512, 512], "elements": 262144, "ready_gap_us": 500},
                {"name": "b", "shape": [512], "elements": 512, "ready_gap_us": 20}]})";
  const Json request = {
      {"trace_file", trace}, {"cluster_file", GRADPRESS_CLUSTER_FILE}, {"codecs", {"efsign"}}};
  std::string text;
  const test::Outcome made = test::call_for_text(text, gradpress_plan_make, request.dump().c_str());
  ASSERT_TRUE(made) << made;
  const Json plan = Json::parse(text);
  EXPECT_EQ(plan["format"], "gradpress-plan-1");
  const auto want = make_plan(
      {.trace_file = trace, .cluster_file = GRADPRESS_CLUSTER_FILE, .codecs = {"efsign"}});
  ASSERT_TRUE(want.has_value()) << want.error().to_string();
  EXPECT_EQ(plan["model"], want->model);
  ASSERT_EQ(plan["tensors"].size(), want->tensors.size());
  for (std::size_t i = 0; i < want->tensors.size(); ++i) {
    EXPECT_EQ(plan["tensors"][i]["codec"], want->tensors[i].codec);
    EXPECT_EQ(plan["tensors"][i]["option"], want->tensors[i].option);
  }
  std::filesystem::remove_all(folder);
}

TEST(CPlans, RequestsAreChecked) {
  gradpress_text* plan = nullptr;
  EXPECT_REFUSED(call(gradpress_plan_make, nullptr, &plan), "request is NULL");
  EXPECT_REFUSED(call(gradpress_plan_make, R"({"trace": "x"})", &plan),
                 "request: trace: unknown; known are trace_file, cluster_file");
  EXPECT_REFUSED(call(gradpress_plan_make, R"({"trace_file": "/no/such/file"})", &plan),
                 "/no/such/file");
  EXPECT_EQ(plan, nullptr);
}

}  // namespace
}  // namespace gradpress
