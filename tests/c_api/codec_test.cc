// Codecs through the C interface.
#include <gradpress/c_api.h>
#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/json.h"
#include "c_api/c_calls.h"

namespace gradpress {
namespace {

using test::call;

constexpr std::uint64_t kRows = 40;
constexpr std::uint64_t kCols = 60;
constexpr std::uint64_t kElements = kRows * kCols;

test::CodecHandle make(const char* text, const char* options = "{}") {
  gradpress_codec* codec = nullptr;
  const std::vector<std::uint64_t> dims = {kRows, kCols};
  const test::Outcome made =
      call(gradpress_codec_make, text, dims.data(), dims.size(), options, &codec);
  EXPECT_TRUE(made) << made;
  return test::CodecHandle(codec);
}

std::vector<float> gradient() {
  std::vector<float> values(kElements);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i * i % 1009));
  }
  return values;
}

std::string encode(gradpress_codec* codec, std::uint64_t step) {
  std::string payload(gradpress_codec_bound(codec, 0), '\0');
  std::size_t used = 0;
  const std::vector<float> values = gradient();
  const test::Outcome done = call(gradpress_codec_encode, codec, values.data(), kElements, step, 0U,
                                  nullptr, std::size_t{0}, payload.data(), payload.size(), &used);
  EXPECT_TRUE(done) << done;
  payload.resize(used);
  return payload;
}

TEST(CCodecs, WriteTheBytesOfTheCodecAndKeepTheRest) {
  const auto codec = make("topk:0.05", R"({"seed": 7, "tensor": 3})");
  const std::string payload = encode(codec.get(), 0);
  const auto same = make_codec("topk:0.05");
  const auto state = (*same)->make_state({.shape = {kRows, kCols}, .seed = 7, .tensor = 3});
  std::vector<std::byte> want((*same)->payload_bound({kRows, kCols}));
  const auto bytes = (*same)->encode(**state, {.grad = gradient()}, want);
  ASSERT_EQ(payload.size(), *bytes);
  EXPECT_EQ(std::memcmp(payload.data(), want.data(), payload.size()), 0);

  std::vector<float> decoded(kElements);
  ASSERT_TRUE(call(gradpress_codec_decode, codec.get(), payload.data(), payload.size(),
                   std::uint64_t{0}, 1.0F, decoded.data(), kElements));
  ASSERT_TRUE(call(gradpress_codec_finish, codec.get(), 1U, decoded.data(), kElements));
  std::vector<float> residual(kElements);
  ASSERT_TRUE(call(gradpress_codec_residual, codec.get(), residual.data(), kElements));
  const std::vector<float> values = gradient();
  for (std::size_t i = 0; i < kElements; ++i) {
    ASSERT_NEAR(decoded[i] + residual[i], values[i], 1e-6F);
  }
  EXPECT_EQ(call(gradpress_codec_decode, codec.get(), payload.data(), payload.size() / 2,
                 std::uint64_t{0}, 1.0F, decoded.data(), kElements)
                .code,
            GRADPRESS_CORRUPT_PAYLOAD);
}

TEST(CCodecs, GoOnFromExtrasAndResidualOfAnother) {
  const auto one = make("acpsgd:2");
  (void)encode(one.get(), 0);
  const auto other = make("acpsgd:2", R"({"seed": 99})");
  std::string extras;
  ASSERT_TRUE(test::call_for_text(extras, gradpress_codec_save_extras, one.get()));
  ASSERT_FALSE(extras.empty());
  ASSERT_TRUE(call(gradpress_codec_load_extras, other.get(), extras.data(), extras.size()));
  std::vector<float> residual(kElements);
  ASSERT_TRUE(call(gradpress_codec_residual, one.get(), residual.data(), kElements));
  ASSERT_TRUE(call(gradpress_codec_load_residual, other.get(), residual.data(), kElements));
  EXPECT_EQ(encode(one.get(), 1), encode(other.get(), 1));
  EXPECT_EQ(call(gradpress_codec_load_extras, other.get(), extras.data(), extras.size() - 1).code,
            GRADPRESS_CORRUPT_PAYLOAD);
}

TEST(CCodecs, DescribeThemselves) {
  std::string text;
  ASSERT_TRUE(test::call_for_text(text, gradpress_codec_describe, make("powersgd:2").get()));
  const Json what = Json::parse(text);
  EXPECT_EQ(what["name"], "powersgd:2");
  EXPECT_EQ(what["rounds"], 2);
  EXPECT_EQ(what["reducible"], true);
  EXPECT_EQ(what["payload_type"], "float32");
  EXPECT_EQ(what["fixed_size"], true);
  EXPECT_EQ(what["feedback"], true);
  EXPECT_EQ(what["combine"], "mean");
  ASSERT_TRUE(test::call_for_text(text, gradpress_codec_describe, make("sign").get()));
  EXPECT_EQ(Json::parse(text)["combine"], "vote");
  EXPECT_EQ(gradpress_codec_bound(make("sign").get(), 5), 0U) << "there is no such round";
}

TEST(CCodecs, AreListedWithExamplesThatAreOnes) {
  std::string text;
  ASSERT_TRUE(test::call_for_text(text, gradpress_codec_list));
  const Json list = Json::parse(text);
  ASSERT_EQ(list.size(), codec_help().size());
  for (const Json& entry : list) {
    const auto example = entry["example"].get<std::string>();
    EXPECT_TRUE(call(gradpress_codec_check, example.c_str())) << example;
    EXPECT_TRUE(example.starts_with(entry["name"].get<std::string>())) << example;
    EXPECT_FALSE(entry["about"].get<std::string>().empty());
  }
  EXPECT_REFUSED(call(gradpress_codec_check, "topk:2"), "topk");
  EXPECT_REFUSED(call(gradpress_codec_check, "bogus"), "bogus");
}

TEST(CCodecs, FactsAreThoseOfTheTextAndOfItsCodec) {
  std::string text;
  ASSERT_TRUE(test::call_for_text(text, gradpress_codec_facts, "topk:1e-2:value=fp16"));
  const Json topk = Json::parse(text);
  EXPECT_EQ(topk["name"], "topk");
  EXPECT_EQ(topk["text"], "topk:0.01:value=fp16");
  EXPECT_EQ(topk["family"], "sparse");
  EXPECT_EQ(topk["value"], 0.01);
  EXPECT_EQ(topk["keys"], Json({{"value", "fp16"}}));
  EXPECT_EQ(topk["feedback"], "needed");
  ASSERT_TRUE(test::call_for_text(text, gradpress_codec_facts, "acpsgd:4"));
  const Json acpsgd = Json::parse(text);
  EXPECT_EQ(acpsgd["cycle"], 2);
  EXPECT_EQ(acpsgd["draws"], "shared");
  ASSERT_TRUE(test::call_for_text(text, gradpress_codec_facts, "none"));
  EXPECT_TRUE(Json::parse(text)["value"].is_null());
  EXPECT_REFUSED(test::call_for_text(text, gradpress_codec_facts, "topk:2"), "at most 1");
}

TEST(CCodecs, StepBytesAreThoseOfAllRoundsAndTheMeanOfStepsThatTakeTurns) {
  const std::uint64_t dims[] = {64, 32};
  const auto bytes = [&](const char* codec) {
    std::uint64_t got = 0;
    EXPECT_TRUE(call(gradpress_codec_step_bytes, codec, dims, 2, &got));
    return got;
  };
  EXPECT_EQ(bytes("none"), 4U * 64 * 32);
  EXPECT_EQ(bytes("powersgd:4"), 4U * 4 * (64 + 32));
  EXPECT_EQ(bytes("acpsgd:4"), 4U * 4 * (64 + 32) / 2);
  std::uint64_t got = 0;
  EXPECT_REFUSED(call(gradpress_codec_step_bytes, "bogus", dims, 2, &got), "bogus");
  EXPECT_REFUSED(call(gradpress_codec_step_bytes, "none", dims, 2, nullptr), "bytes is NULL");
}

TEST(CCodecs, RefuseWhatDoesNotFit) {
  const auto codec = make("topk:0.05");
  std::vector<float> values = gradient();
  EXPECT_REFUSED(call(gradpress_codec_residual, codec.get(), values.data(), kElements - 1),
                 "wanted 2400 elements, got 2399");
  std::size_t used = 77;
  std::string payload(1, '\0');
  EXPECT_EQ(call(gradpress_codec_encode, codec.get(), values.data(), kElements, std::uint64_t{0},
                 0U, nullptr, std::size_t{0}, payload.data(), payload.size(), &used)
                .code,
            GRADPRESS_INVALID_ARGUMENT);
  EXPECT_EQ(used, 77U);
  values[3] = NAN;
  payload.resize(gradpress_codec_bound(codec.get(), 0));
  EXPECT_EQ(call(gradpress_codec_encode, codec.get(), values.data(), kElements, std::uint64_t{0},
                 0U, nullptr, std::size_t{0}, payload.data(), payload.size(), &used)
                .code,
            GRADPRESS_NON_FINITE);
  gradpress_codec* none = nullptr;
  const std::vector<std::uint64_t> dims(9, 2);
  EXPECT_REFUSED(call(gradpress_codec_make, "none", dims.data(), dims.size(), "{}", &none), "9");
  EXPECT_REFUSED(
      call(gradpress_codec_make, "none", dims.data(), std::size_t{1}, R"({"sed": 1})", &none),
      "options: sed: unknown; known are seed, tensor, site, first_shard, source, feedback");
}

}  // namespace
}  // namespace gradpress
