#include "spec/spec.h"

#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace gradpress::codec {
namespace {

constexpr std::uint64_t kHuge[] = {(std::uint64_t{1} << 31) + 5, 3'000'000'000,
                                   (std::uint64_t{1} << 32) - 1};

struct Refused {
  std::string text;
  std::string says;  // what the message must contain
};

class WrongText : public ::testing::TestWithParam<Refused> {};

TEST_P(WrongText, IsRefusedWithAReason) {
  const auto spec = parse_spec(GetParam().text);
  ASSERT_FALSE(spec.has_value()) << "parsed as " << to_text(*spec);
  EXPECT_EQ(spec.error().code(), Code::kInvalidArgument);
  EXPECT_NE(spec.error().message().find(GetParam().says), std::string::npos)
      << spec.error().message();
  const auto codec = make_codec(GetParam().text);
  ASSERT_FALSE(codec.has_value());
  EXPECT_EQ(codec.error().message(), spec.error().message());
}

INSTANTIATE_TEST_SUITE_P(
    Texts, WrongText,
    ::testing::Values(
        Refused{"", "known are none, fp16"}, Refused{"gzip", "\"gzip\""},
        Refused{"gzip", "topk, randomk, dgc, redsync"}, Refused{"TOPK:0.1", "unknown codec"},
        Refused{"topk:0", "a ratio above 0"}, Refused{"topk:-0.1", "\"-0.1\""},
        Refused{"topk:1.01", "at most 1"}, Refused{"topk:nan", "\"nan\""},
        Refused{"topk:inf", "\"inf\""}, Refused{"topk:1e-999", "a ratio"},
        Refused{"topk:abc", "\"abc\""}, Refused{"topk:0.1x", "\"0.1x\""},
        Refused{"topk: 0.1", "\" 0.1\""}, Refused{"topk", "topk:0.01"},
        Refused{"topk:", "got \"\""}, Refused{"topk:0.1:0.2", "second value"},
        Refused{"topk:0.1:", "second value"}, Refused{"topk:0.1:rank=2", "no parameter \"rank\""},
        Refused{"topk:0.1:rank=2", "it has index, value"}, Refused{"powersgd:2:a=1", "it has rate"},
        Refused{"chunktopk:64", "64/4096"}, Refused{"chunktopk", "chunktopk:64/4096"},
        Refused{"chunktopk:64/8192", "from 16 to 4096"},
        Refused{"chunktopk:65/64", "got \"65/64\""}, Refused{"chunktopk:0/64", "kept elements"},
        Refused{"chunktopk:1.5/64", "kept elements"}, Refused{"chunktopk:1/64/2", "kept elements"},
        Refused{"topk:0.1:value=fp8", "value wants one of fp32, fp16, bf16, 2bit"},
        Refused{"topk:0.1:value=1", "got \"1\""},
        Refused{"randomk:0.1:index=rice", "no parameter \"index\""},
        Refused{"powersgd:0", "a whole rank from 1"}, Refused{"powersgd:1.5", "\"1.5\""},
        Refused{"acpsgd:1025", "to 1024"}, Refused{"acpsgd:-1", "\"-1\""},
        Refused{"acpsgd", "acpsgd:4"}, Refused{"qsgd:3", "2, 4 or 8 bits"},
        Refused{"qsgd:16", "\"16\""}, Refused{"qsgd", "qsgd:8"},
        Refused{"qsgd:8:block=8", "from 16 to 1048576"}, Refused{"qsgd:8:block=16.5", "whole"},
        Refused{"qsgd:8:block=", "got \"\""}, Refused{"none:1", "takes no value"},
        Refused{"sign:0.1", "takes no value"}, Refused{"none:a=1", "no parameter \"a\""},
        Refused{"terngrad:clip=-1", "from 0 to 1000"}, Refused{"signum:1", "below 1"},
        Refused{"signum", "signum:0.9"}, Refused{"randomk:0.1:unbiased=2", "from 0 to 1"},
        Refused{"randomk:0.1:unbiased=1:value=fp16", "fp32"},
        Refused{"dgc:0.1:sample=0", "from 1e-04 to 1"}, Refused{"dgc:0.1:sample=nan", "\"nan\""},
        Refused{"redsync:0.1:reuse=0", "from 1"}, Refused{"redsync:0.1:high=0.5", "from 1 to 1000"},
        Refused{"redsync:0.1:exact=-1", "from 0"}, Refused{"redsync:0.1:depth=1", "trim-step"},
        Refused{"redsync:reuse=3", "needs a value"}, Refused{"redsync:0.1:=3", "no parameter"}));

TEST(SpecText, EveryTextRoundTripsThroughItsShortestForm) {
  const char* const every_key_of_redsync =
      "redsync:0.001:exact=0:trimmed=7:trim=0.9:trim-step=0.1:low=0.8:high=1.2:cut=1:probes=4:"
      "reuse=20";
  for (const std::string_view text : {"none",
                                      "fp16",
                                      "bf16",
                                      "sign",
                                      "signum:0.95",
                                      "efsign",
                                      "onebit",
                                      "topk:0.01",
                                      "topk:1",
                                      "topk:1e-05",
                                      "randomk:0.25",
                                      "randomk:0.25:value=2bit",
                                      "randomk:0.25:unbiased=1",
                                      "topk:0.01:index=rice:value=fp16",
                                      "dgc:0.001:sample=0.5:index=rice:value=bf16",
                                      "chunktopk:64/4096",
                                      "chunktopk:16/16:index=rice:value=2bit",
                                      "dgc:0.001",
                                      "dgc:0.001:sample=0.5",
                                      "redsync:0.001",
                                      every_key_of_redsync,
                                      "redsync-q:0.02",
                                      "qsgd:2",
                                      "qsgd:4",
                                      "qsgd:8:block=64",
                                      "terngrad",
                                      "terngrad:clip=0",
                                      "natural",
                                      "int8",
                                      "int8:block=4096",
                                      "kashin:4",
                                      "powersgd:2",
                                      "powersgd:4:rate=2",
                                      "acpsgd:1024"}) {
    const auto spec = parse_spec(text);
    ASSERT_TRUE(spec.has_value()) << text << ": " << spec.error().to_string();
    EXPECT_EQ(to_text(*spec), text);
    EXPECT_EQ(*parse_spec(to_text(*spec)), *spec);
  }
}

TEST(SpecText, DefaultsAreLeftOutAndNumbersNormalised) {
  EXPECT_EQ(to_text(*parse_spec("redsync:0.0010:reuse=5:probes=12")), "redsync:0.001");
  EXPECT_EQ(to_text(*parse_spec("topk:1e-2")), "topk:0.01");
  EXPECT_EQ(to_text(*parse_spec("int8:block=1024")), "int8");
  EXPECT_EQ(to_text(*parse_spec("qsgd:block=64:8")), "qsgd:8:block=64");
}

TEST(SpecText, EveryKeyLandsInItsField) {
  const auto spec = *parse_spec(
      "redsync:0.5:exact=1:trimmed=2:trim=0.3:trim-step=0.4:low=0.25:high=6:cut=1:probes=7:reuse="
      "8");
  EXPECT_EQ(spec.ratio, 0.5);
  EXPECT_EQ(spec.redsync, (RedSyncTuning{.exact_max = 1,
                                         .trimmed_max = 2,
                                         .trim_start = 0.3,
                                         .trim_step = 0.4,
                                         .band_low = 0.25,
                                         .band_high = 6,
                                         .cut = 1,
                                         .probes = 7,
                                         .reuse = 8}));
  EXPECT_EQ(parse_spec("dgc:0.5:sample=0.2")->sample, 0.2);
  EXPECT_EQ(parse_spec("terngrad:clip=3.5")->clip_sigmas, 3.5);
  EXPECT_EQ(parse_spec("qsgd:4:block=32")->block, 32U);
  EXPECT_EQ(parse_spec("acpsgd:9")->rank, 9U);
}

TEST(SpecText, EveryHelpLineHasAnExampleThatMakesItsCodec) {
  ASSERT_FALSE(codec_help().empty());
  for (const CodecHelp& help : codec_help()) {
    const auto codec = make_codec(help.example);
    ASSERT_TRUE(codec.has_value()) << codec.error().to_string();
    EXPECT_EQ((*codec)->name(), help.example);
    EXPECT_FALSE(help.about.empty());
    const auto name = [](std::string_view text) {
      return text.substr(0, text.find_first_of(":["));
    };
    EXPECT_EQ(name(help.usage), name(help.example));
  }
}

TEST(KeptElements, AreTheCeilingOfTheDoubleProduct) {
  for (const double ratio : {0.001, 0.01, 0.1, 1.0 / 3.0, 0.999, 1.0}) {
    Spec spec{.kind = Kind::kTopK, .ratio = ratio};
    for (const std::uint64_t n : kHuge) {
      EXPECT_EQ(kept_elements(spec, n), std::uint64_t(std::ceil(ratio * double(n)))) << n;
    }
    EXPECT_EQ(kept_elements(spec, 0), 0U);
    EXPECT_EQ(kept_elements(spec, 1), 1U);
  }
  EXPECT_EQ(kept_elements({.kind = Kind::kTopK, .ratio = 1e-12}, 1000), 1U) << "at least one";
  // 0.07 · 100 is 7.000000000000001 in double: the wire format says so, and both sides obey.
  EXPECT_EQ(kept_elements({.kind = Kind::kTopK, .ratio = 0.07}, 100), 8U);
  // In single precision 0.1 · (2^31 + 5) would be another number.
  EXPECT_EQ(kept_elements({.kind = Kind::kTopK, .ratio = 0.1}, kHuge[0]), 214'748'366U);
}

TEST(PayloadBytes, AreTheWireFormatsFormulasForHugeTensors) {
  for (const std::uint64_t n : kHuge) {
    const Shape shape = Shape::flat(n);
    const auto bytes = [&](std::string_view text) {
      return payload_bytes(*parse_spec(text), shape);
    };
    EXPECT_EQ(bytes("none"), 4 * n);
    EXPECT_EQ(bytes("fp16"), 2 * n);
    EXPECT_EQ(bytes("bf16"), 2 * n);
    EXPECT_EQ(bytes("sign"), 4 * ((n + 31) / 32));
    EXPECT_EQ(bytes("signum:0.9"), 4 * ((n + 31) / 32));
    EXPECT_EQ(bytes("efsign"), 4 * ((n + 31) / 32) + 4);
    EXPECT_EQ(bytes("onebit"), 4 * ((n + 31) / 32) + 8);
    const auto k = std::uint64_t(std::ceil(0.01 * double(n)));
    EXPECT_EQ(bytes("topk:0.01"), 8 * k);
    EXPECT_EQ(bytes("dgc:0.01"), 8 * k);
    const auto searched = std::uint64_t(std::ceil(1.5 * double(k))) - 1;
    EXPECT_EQ(bytes("redsync:0.01"), 8 * searched);
    EXPECT_EQ(bytes("redsync:0.01:cut=1"), 8 * k);
    EXPECT_EQ(bytes("redsync-q:0.01"), 4 * searched + 4);
    EXPECT_EQ(bytes("chunktopk:64/4096"), 8 * (n / 4096 * 64 + (n % 4096 * 64 + 4095) / 4096));
    EXPECT_EQ(bytes("topk:0.01:value=fp16"), 4 + 6 * k);
    EXPECT_EQ(bytes("topk:0.01:index=rice"),
              4 + 4 * k + (6 * k + 7) / 8 + (k + (n - k) / 64 + 7) / 8);
    EXPECT_EQ(bytes("randomk:0.01:value=2bit"), 16 + (k + 3) / 4);
    EXPECT_EQ(bytes("randomk:0.01"), 4 * k);
    EXPECT_EQ(bytes("int8"), n + 4 * ((n + 1023) / 1024));
    EXPECT_EQ(bytes("qsgd:8:block=64"), n + 4 * ((n + 63) / 64));
    EXPECT_EQ(bytes("qsgd:4"), (n + 1) / 2 + 4 * ((n + 1023) / 1024));
    EXPECT_EQ(bytes("qsgd:2"), (n + 3) / 4 + 4 * ((n + 1023) / 1024));
    EXPECT_EQ(bytes("terngrad"), (n + 3) / 4 + 4);
    EXPECT_EQ(bytes("natural"), n);
    std::uint64_t frames = n / 1024 * (4 + 512);
    if (n % 1024 != 0) {
      std::uint64_t length = 16;
      while (length < n % 1024) length *= 2;
      frames += 4 + length / 2;
    }
    EXPECT_EQ(bytes("kashin:4"), frames);
    EXPECT_EQ(bytes("acpsgd:4"), 4 * n) << "a vector travels dense";
  }
}

TEST(StepBytes, CountAllRoundsAndTheMeanOfStepsThatTakeTurns) {
  const Shape square{64, 64};
  EXPECT_EQ(step_bytes(*parse_spec("powersgd:48"), square), 4U * 48 * 128) << "1.5 times raw";
  EXPECT_EQ(step_bytes(*parse_spec("acpsgd:48"), square), 4U * 48 * 64);
  EXPECT_EQ(step_bytes(*parse_spec("acpsgd:2"), {10, 3}), 4U * 2 * 13 / 2);
  EXPECT_EQ(step_bytes(*parse_spec("powersgd:4"), {10}), 40U) << "a vector travels dense";
  EXPECT_EQ(step_bytes(*parse_spec("acpsgd:4"), {10}), 40U);
  EXPECT_EQ(step_bytes(*parse_spec("topk:0.5"), {10}), 40U);
}

TEST(PayloadBytes, OfLowRankCodecsAreTheFactors) {
  const auto power = *parse_spec("powersgd:4");
  const auto acp = *parse_spec("acpsgd:4");
  const Shape kernel{64, 3, 7, 7};
  EXPECT_EQ(payload_bytes(power, kernel, 0), 4U * 64 * 4);
  EXPECT_EQ(payload_bytes(power, kernel, 1), 4U * 147 * 4);
  EXPECT_EQ(payload_bytes(acp, kernel, 0), 4U * 64 * 4);
  EXPECT_EQ(payload_bytes(acp, kernel, 1), 4U * 147 * 4);
  EXPECT_EQ(effective_rank(acp, {3, 1000}), 3U);
  EXPECT_EQ(effective_rank(acp, {1000, 2}), 2U);
  EXPECT_EQ(effective_rank(acp, {1000}), 0U);
  EXPECT_EQ(effective_rank(acp, {}), 0U);
  EXPECT_EQ(payload_bytes(power, {10}, 0), 40U);
  // (64 + 147) · 4 · 11 is less than 64 · 147, times 12 it is more.
  EXPECT_EQ(effective_rank(*parse_spec("powersgd:4:rate=11"), kernel), 4U);
  EXPECT_EQ(effective_rank(*parse_spec("powersgd:4:rate=12"), kernel), 0U);
  EXPECT_EQ(payload_bytes(*parse_spec("powersgd:4:rate=12"), kernel, 0), 4U * 64 * 147);
  EXPECT_EQ(payload_bytes(*parse_spec("powersgd:4:rate=12"), kernel, 1), 0U);
  EXPECT_EQ(payload_bytes(power, {10}, 1), 0U) << "a vector has no second round";
  EXPECT_EQ(payload_bytes(acp, {10}, 1), 40U);
  EXPECT_EQ(payload_bytes(acp, {0, 5}, 0), 0U);
}

TEST(EncodeBound, IsTheSumOverTheShards) {
  for (const CodecHelp& help : codec_help()) {
    const auto codec = *make_codec(help.example);
    for (const std::uint64_t n : {0U, 1U, 2U, 6U, 31U, 32U, 33U, 1000U, 1023U, 65537U}) {
      for (const std::uint32_t shards : {1U, 2U, 3U, 7U, 64U, 1000U}) {
        std::size_t sum = 0;
        for (std::uint32_t s = 0; s < shards; ++s) {
          sum += codec->payload_bound(Shape::flat(shard_range(n, shards, s).count));
        }
        ASSERT_EQ(codec->encode_bound(Shape::flat(n), shards), sum)
            << help.example << ", " << n << " elements, " << shards << " shards";
      }
    }
    for (const std::uint64_t n : kHuge) {
      // 7 shards: six whole ones and a rest.
      const std::uint64_t width = (n + 6) / 7;
      EXPECT_EQ(codec->encode_bound(Shape::flat(n), 7),
                6 * codec->payload_bound(Shape::flat(width)) +
                    codec->payload_bound(Shape::flat(n - 6 * width)))
          << help.example;
    }
  }
}

}  // namespace
}  // namespace gradpress::codec
