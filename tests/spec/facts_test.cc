#include "spec/facts.h"

#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace gradpress::codec {
namespace {

TEST(CodecFacts, EveryRowIsFoundByItsKindItsNameAndItsExample) {
  ASSERT_FALSE(all_facts().empty());
  std::set<std::string_view> names;
  for (const Facts& facts : all_facts()) {
    EXPECT_TRUE(names.insert(facts.name).second) << facts.name << " stands in the table twice";
    EXPECT_EQ(&facts_of(facts.kind), &facts);
    EXPECT_EQ(find_facts(facts.name), &facts);
    EXPECT_EQ(facts_of_text(facts.example), &facts);
    const auto spec = parse_spec(facts.example);
    ASSERT_TRUE(spec.has_value()) << spec.error().to_string();
    EXPECT_EQ(spec->kind, facts.kind);
    EXPECT_EQ(to_text(*spec), facts.example);
    EXPECT_TRUE(facts.usage.starts_with(facts.name)) << facts.usage;
    EXPECT_FALSE(facts.about.empty()) << facts.name;
    EXPECT_NE(facts.bytes, nullptr) << facts.name;
  }
  EXPECT_EQ(find_facts("gzip"), nullptr);
  EXPECT_EQ(facts_of_text("gzip:9"), nullptr);
  EXPECT_EQ(facts_of_text(""), nullptr);
}

TEST(CodecFacts, EveryRowHasACodecWithTheTraitsOfTheTable) {
  for (const Facts& facts : all_facts()) {
    const auto codec = make_codec(facts.example);
    ASSERT_TRUE(codec.has_value()) << codec.error().to_string();
    EXPECT_EQ((*codec)->traits(), traits_of(*parse_spec(facts.example))) << facts.name;
  }
}

TEST(CodecFacts, OfOneRowDoNotContradictEachOther) {
  for (const Facts& facts : all_facts()) {
    const Traits& traits = facts.traits;
    EXPECT_EQ(facts.encodes(), facts.name != "none") << facts.name;
    EXPECT_EQ(traits.payload_type == DataType::kBytes, !traits.reducible) << facts.name;
    EXPECT_TRUE(traits.supports_feedback || !traits.needs_feedback) << facts.name;
    EXPECT_EQ(facts.is_sparse(), facts.value == Value::kRatio || facts.value == Value::kChunk)
        << facts.name;
    EXPECT_EQ(facts.is_low_rank(), facts.value == Value::kRank) << facts.name;
    EXPECT_TRUE(!facts.is_low_rank() || traits.reducible) << facts.name;
    EXPECT_TRUE(traits.biased || !facts.encodes() || facts.draws == Draws::kAny)
        << facts.name << " cannot be unbiased without drawing";
    if (!facts.for_output.empty()) {
      EXPECT_NE(find_facts(facts.for_output), nullptr) << facts.name;
    }
    for (const Key& key : facts.keys) {
      EXPECT_LE(key.least, key.get(Spec{})) << facts.name << ":" << key.name;
      EXPECT_GE(key.most, key.get(Spec{})) << facts.name << ":" << key.name;
    }
  }
}

TEST(CodecFacts, ParametersAdjustTraits) {
  EXPECT_TRUE(traits_of(*parse_spec("terngrad")).biased);
  EXPECT_FALSE(traits_of(*parse_spec("terngrad:clip=0")).biased);
}

TEST(CodecFacts, WordsAreDistinct) {
  std::set<std::string_view> words;
  for (const Family family : {Family::kRaw, Family::kCast, Family::kSign, Family::kQuantizer,
                              Family::kSparse, Family::kLowRank}) {
    EXPECT_TRUE(words.insert(to_text(family)).second) << to_text(family);
  }
  EXPECT_EQ(to_text(Value::kRatio), "ratio");
  EXPECT_EQ(to_text(Value::kRank), "rank");
  EXPECT_EQ(to_text(Draws::kShared), "shared");
}

}  // namespace
}  // namespace gradpress::codec
