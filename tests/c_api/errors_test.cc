// What the C interface says when it is called wrongly.
#include <gradpress/c_api.h>
#include <gradpress/version.h>
#include <gtest/gtest.h>

#include "c_api/model.h"

namespace gradpress {
namespace {

using test::call;

TEST(CErrors, VersionsAreThoseOfTheHeaders) {
  EXPECT_EQ(gradpress_api_version(), GRADPRESS_C_API_VERSION);
  EXPECT_EQ(gradpress_version(), version());
}

TEST(CErrors, NullIsNamed) {
  EXPECT_REFUSED(call(gradpress_group_connect, "{}", nullptr), "group is NULL");
  EXPECT_REFUSED(call(gradpress_group_local, "{}", nullptr, std::size_t{2}), "groups is NULL");
  EXPECT_REFUSED(call(gradpress_group_wait, nullptr, std::uint64_t{1}), "group is NULL");
  EXPECT_REFUSED(call(gradpress_engine_push, nullptr, 0U, nullptr, GRADPRESS_FLOAT32, 0),
                 "engine is NULL");
  EXPECT_REFUSED(call(gradpress_engine_wait, nullptr, nullptr), "engine is NULL");
  EXPECT_REFUSED(call(gradpress_codec_check, nullptr), "codec is NULL");
  EXPECT_REFUSED(call(gradpress_codec_list, nullptr), "list is NULL");
  EXPECT_REFUSED(call(gradpress_plan_make, "{}", nullptr), "plan is NULL");
  gradpress_engine* engine = nullptr;
  EXPECT_REFUSED(call(gradpress_engine_make, nullptr, "[]", "{}", &engine), "group is NULL");
}

TEST(CErrors, FreeingNothingIsFine) {
  gradpress_text_free(nullptr);
  gradpress_group_free(nullptr);
  gradpress_engine_close(nullptr);
  gradpress_engine_free(nullptr);
  gradpress_codec_free(nullptr);
  EXPECT_EQ(gradpress_text_data(nullptr), nullptr);
  EXPECT_EQ(gradpress_text_size(nullptr), 0U);
  EXPECT_EQ(gradpress_group_size(nullptr), 0U);
  EXPECT_EQ(gradpress_group_backend(nullptr), nullptr);
  EXPECT_EQ(gradpress_group_done(nullptr, 1), 0);
  EXPECT_EQ(gradpress_codec_bound(nullptr, 0), 0U);
  std::uint64_t intra = 1;
  gradpress_group_sent_bytes(nullptr, &intra, nullptr);
  EXPECT_EQ(intra, 0U);
}

TEST(CErrors, ErrorsNeedNotBeAskedFor) {
  EXPECT_EQ(gradpress_codec_check("bogus", nullptr), GRADPRESS_INVALID_ARGUMENT);
  EXPECT_EQ(gradpress_codec_check("none", nullptr), GRADPRESS_OK);
}

test::Outcome make_with(const std::string& tensors, const std::string& options) {
  gradpress_engine* engine = nullptr;
  const test::Outcome made = call(gradpress_engine_make, test::local_groups(1).front().release(),
                                  tensors.c_str(), options.c_str(), &engine);
  EXPECT_EQ(engine != nullptr, static_cast<bool>(made));
  gradpress_engine_free(engine);
  return made;
}

TEST(CErrors, OptionsNameThePlaceThatIsWrong) {
  const std::string model = test::model_json();
  EXPECT_REFUSED(make_with(model, "{"), "options: not JSON");
  EXPECT_REFUSED(make_with(model, "[]"), "options: wanted a JSON object, got []");
  EXPECT_REFUSED(make_with(model, R"({"codecc": "none"})"),
                 "options: codecc: unknown; known are codec, rules, plan");
  EXPECT_REFUSED(make_with(model, R"({"codec": 5})"), "options: codec: wanted a text, got 5");
  EXPECT_REFUSED(make_with(model, R"({"codec": "bogus"})"), "bogus");
  EXPECT_REFUSED(make_with(model, R"({"fusion": 1})"), "options: fusion: wanted true or false");
  EXPECT_REFUSED(make_with(model, R"({"seed": -1})"), "options: seed: wanted a whole number");
  EXPECT_REFUSED(make_with(model, R"({"auto": {"window": 0}})"), "options: auto.window: wanted");
  EXPECT_REFUSED(make_with(model, R"({"auto": {"windw": 3}})"),
                 "options: auto.windw: unknown; known are codecs, raw_steps");
  EXPECT_REFUSED(make_with(model, R"({"auto": {"codecs": ["none", 3]}})"),
                 "options: auto.codecs[1]: wanted a text, got 3");
  EXPECT_REFUSED(make_with(model, R"({"rules": [["a"]]})"), "options: rules[0]: wanted a list");
  EXPECT_REFUSED(make_with(model, R"({"momentum": {"momentum": 2}})"), "momentum");
  EXPECT_REFUSED(make_with(model, R"({"momentum": 0.9})"), "options: momentum: wanted an object");
  EXPECT_REFUSED(make_with(model, R"({"momentum": {}, "return_unused": true})"),
                 "return_unused and momentum exclude each other");
  EXPECT_REFUSED(make_with(model, R"({"plan": {}})"), "options: plan");
  EXPECT_TRUE(make_with(model, ""));
  EXPECT_TRUE(make_with(model, R"({"seed": 18446744073709551615})"));
}

TEST(CErrors, TensorsNameThePlaceThatIsWrong) {
  EXPECT_REFUSED(make_with("[", "{}"), "tensors: not JSON");
  EXPECT_REFUSED(make_with("{}", "{}"), "wanted a list");
  EXPECT_REFUSED(make_with("[]", "{}"), "wanted tensors, got none");
  EXPECT_REFUSED(make_with(R"([{"name": "w"}])", "{}"), "tensors: [0]: wanted an object with name");
  EXPECT_REFUSED(make_with(R"([{"name": "w", "shape": [3, -1]}])", "{}"), "tensors: [0].shape[1]");
  EXPECT_REFUSED(make_with(R"([{"name": "w", "shape": [3], "type": 1}])", "{}"),
                 "tensors: [0].type: unknown; known are name, shape");
  EXPECT_TRUE(make_with(R"([{"name": "w", "shape": [2,2,2,2,2,2,2,2,2,2]}])", "{}"))
      << "more extents than a shape has are flattened";
}

TEST(CErrors, ConnectOptionsAreChecked) {
  gradpress_group* group = nullptr;
  EXPECT_REFUSED(call(gradpress_group_connect, R"({"ranks": 2})", &group),
                 "options: ranks: unknown; known are backend, rank, size");
  EXPECT_REFUSED(call(gradpress_group_connect, R"({"timeout_s": 0})", &group),
                 "options: timeout_s: wanted a number of seconds above 0");
  EXPECT_REFUSED(call(gradpress_group_connect, R"({"backend": "tcp"})", &group), "backend \"tcp\"");
  EXPECT_REFUSED(call(gradpress_group_connect, R"({"rank": "0"})", &group), "options: rank");
  EXPECT_EQ(group, nullptr);
}

TEST(CErrors, LocalOptionsAreChecked) {
  std::vector<gradpress_group*> groups(3);
  EXPECT_REFUSED(
      call(gradpress_group_local, R"({"workers_per_machine": 2})", groups.data(), std::size_t{3}),
      "3 workers do not fill machines of 2");
  EXPECT_REFUSED(call(gradpress_group_local, R"({"link": "fast"})", groups.data(), std::size_t{3}),
                 "fast");
  for (gradpress_group* group : groups) EXPECT_EQ(group, nullptr);
}

}  // namespace
}  // namespace gradpress
