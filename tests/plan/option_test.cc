#include "plan/option.h"

#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "plan/fit.h"
#include "plan/tree.h"

namespace gradpress::plan {
namespace {

constexpr Topology kEightByEight{.machines = 8, .workers = 8};

CodecFit fit_of(std::string_view text) { return codec_fit(*codec::parse_spec(text)); }

Option option_of(std::string_view text) {
  const auto option = parse_option(text);
  EXPECT_TRUE(option.has_value()) << option.error().to_string();
  return option.value_or(Option());
}

TEST(Tree, HasThePublishedNumberOfOptions) {
  const OptionTree both{Restrictions{}};
  EXPECT_EQ(both.size(), 4341U);
  EXPECT_EQ(both.options().size(), 4341U);
  const OptionTree device{Restrictions{.host = false}};
  EXPECT_EQ(device.size(), 174U);
  unsigned raw = 0;
  for (const Option& option : device.options()) raw += option.is_raw() ? 1 : 0;
  EXPECT_EQ(raw, 9U);
}

TEST(Tree, HasThePublishedSubtreeCounts) {
  const SubtreeCounts both = count_subtrees({});
  EXPECT_EQ(both.t1, 5U);
  EXPECT_EQ(both.t2, 12U);
  EXPECT_EQ(both.t3, 63U);
  EXPECT_EQ(both.t4, 152U);
  EXPECT_EQ(both.t5, 29U);
  EXPECT_EQ(both.flat, 63U);
  EXPECT_EQ(both.hier, 4278U);
  EXPECT_EQ(both.rounds, 0U);
  const SubtreeCounts one = count_subtrees({.host = false});
  EXPECT_EQ(one.t1, 2U);
  EXPECT_EQ(one.t2, 3U);
  EXPECT_EQ(one.t3, 12U);
  EXPECT_EQ(one.t4, 19U);
  EXPECT_EQ(one.t5, 5U);
  EXPECT_EQ(one.flat, 12U);
  EXPECT_EQ(one.hier, 162U);
}

TEST(Tree, ExtensionKeepsEveryOptionOfThePaperInOrder) {
  const auto paper = OptionTree(Restrictions{}).options();
  const auto extended = OptionTree(Restrictions{.extended = true}).options();
  EXPECT_EQ(extended.size(), 14'377U);
  auto next = extended.begin();
  for (const Option& option : paper) {
    next = std::find(next, extended.end(), option);
    ASSERT_NE(next, extended.end()) << to_text(option);
  }
}

TEST(Tree, EveryOptionHasItsOwnTextAndParsesBack) {
  std::set<std::string> texts;
  for (const Option& option : OptionTree(Restrictions{.extended = true}).options()) {
    const std::string text = to_text(option);
    EXPECT_TRUE(texts.insert(text).second) << "twice: " << text;
    const auto parsed = parse_option(text);
    ASSERT_TRUE(parsed.has_value()) << parsed.error().to_string();
    ASSERT_EQ(*parsed, option) << text;
  }
}

TEST(Tree, LongestPathFillsAnOptionExactly) {
  std::size_t longest = 0;
  for (const Option& option : OptionTree(Restrictions{.extended = true}).options()) {
    longest = std::max(longest, option.actions().size());
  }
  EXPECT_EQ(longest, Option::kMaxActions);
}

TEST(Tree, PreorderNodesSkipExactlyTheirSubtrees) {
  const OptionTree tree{Restrictions{.host = false}};
  for (std::uint32_t node = 0; node < tree.nodes().size(); ++node) {
    for (std::uint32_t other = node + 1; other < tree.nodes().size(); ++other) {
      bool below = false;
      for (std::uint32_t at = other; at != OptionTree::kRoot; at = tree.nodes()[at].parent) {
        below = below || at == node;
      }
      ASSERT_EQ(below, other < tree.nodes()[node].after) << node << " " << other;
    }
  }
}

TEST(Tree, RestrictionsLeaveOutWhatTheyName) {
  const auto restricted = [](std::initializer_list<std::string_view> words) {
    Restrictions restrictions;
    for (const std::string_view word : words) EXPECT_TRUE(forbid(restrictions, word).is_ok());
    return OptionTree(restrictions).options();
  };
  EXPECT_EQ(restricted({"host"}).size(), 174U);
  EXPECT_EQ(restricted({"intra"}).size(), 63U);
  EXPECT_EQ(restricted({"flat"}).size(), 4278U);
  EXPECT_TRUE(restricted({"inter"}).empty());
  for (const Option& option : restricted({"alltoall", "reduce"})) {
    const std::string text = to_text(option);
    EXPECT_EQ(text.find("alltoall"), std::string::npos) << text;
    EXPECT_EQ(text.find("reduce@"), text.find("allreduce@") == std::string::npos
                                        ? std::string::npos
                                        : text.find("allreduce@") + 3)
        << text;
  }
  for (unsigned most = 0; most <= 4; ++most) {
    std::size_t expected = 0;
    for (const Option& option : OptionTree(Restrictions{}).options()) {
      expected += option.encodes() <= most ? 1 : 0;
    }
    EXPECT_EQ(OptionTree(Restrictions{.max_encodes = most}).size(), expected) << most;
  }
  Restrictions restrictions;
  const Status status = forbid(restrictions, "gpu");
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("\"gpu\""), std::string::npos);
}

TEST(Tree, AcceptsKeepsANamedSubtree) {
  const OptionTree raw{
      Restrictions{.accepts = [](const Option& option) { return option.is_raw(); }}};
  EXPECT_EQ(raw.size(), 9U);
}

TEST(OptionText, ReadsTheDocumentedExample) {
  const Option option = option_of(
      "reduce-scatter@intra1>Comp@device > allgather@inter >  Decomp@host > allgather@intra2");
  ASSERT_EQ(option.actions().size(), 5U);
  EXPECT_EQ(option.actions()[2].step, Step::kWhole);
  EXPECT_TRUE(option.actions()[2].encoded);
  EXPECT_EQ(option.actions()[4].step, Step::kSecond);
  EXPECT_FALSE(option.actions()[4].encoded);
  EXPECT_EQ(option.encodes(), 1U);
  EXPECT_FALSE(option.is_flat());
  EXPECT_EQ(to_text(option.moved_to(Place::kHost)),
            "reduce-scatter@intra1 > Comp@host > allgather@inter > Decomp@host > allgather@intra2");
}

TEST(OptionText, ErrorsSayWhereAndWhatWasWanted) {
  const auto message = [](std::string_view text) {
    const auto option = parse_option(text);
    EXPECT_FALSE(option.has_value()) << text;
    return option.has_value() ? std::string() : option.error().message();
  };
  EXPECT_NE(message("").find("action 1"), std::string::npos);
  EXPECT_NE(message("allreduce").find("COLLECTIVE@PHASE"), std::string::npos);
  EXPECT_NE(message("allreduce@moon").find("flat, intra1, inter, intra2"), std::string::npos);
  EXPECT_NE(message("Comp@gpu > allgather@flat").find("device, host"), std::string::npos);
  EXPECT_NE(message("sum@flat").find("reduce-scatter"), std::string::npos);
  // A reduce is ended by a broadcast, not by an all-gather.
  const std::string pair = message("reduce@flat > allgather@flat");
  EXPECT_NE(pair.find("action 2"), std::string::npos) << pair;
  EXPECT_NE(pair.find("broadcast@flat"), std::string::npos) << pair;
  const std::string cut = message("reduce-scatter@intra1 > allreduce@inter");
  EXPECT_NE(cut.find("got the end"), std::string::npos) << cut;
  const std::string more = message("allreduce@flat > allreduce@flat");
  EXPECT_NE(more.find("the end"), std::string::npos) << more;
}

TEST(WhyNot, EveryPaperOptionFitsEveryElementwiseCodec) {
  const Shape shape{64, 32};
  for (const char* codec : {"efsign", "dgc:0.01", "randomk:0.01", "fp16", "qsgd:8"}) {
    for (const Option& option : OptionTree(Restrictions{}).options()) {
      ASSERT_EQ(why_not(option, fit_of(codec), shape, kEightByEight), "") << to_text(option);
    }
  }
}

TEST(WhyNot, NamesTheReason) {
  const Option summed = option_of("Comp@device > allreduce@flat > Decomp@device");
  const Option gathered = option_of("Comp@device > allgather@flat > Decomp@device");
  const Option rounds =
      option_of("Comp@device > allreduce@flat > Comp@device > allreduce@flat > Decomp@device");
  const Option late = option_of(
      "reduce-scatter@intra1 > Comp@host > allreduce@inter > Decomp@host > "
      "allgather@intra2");
  const Shape matrix{64, 32};
  const auto why = [&](const Option& option, std::string_view codec, const Shape& shape) {
    return why_not(option, fit_of(codec), shape, kEightByEight);
  };
  EXPECT_EQ(why(summed, "fp16", matrix), "");
  EXPECT_EQ(why(summed, "acpsgd:4", matrix), "");
  EXPECT_EQ(why(rounds, "powersgd:4", matrix), "");
  EXPECT_EQ(why(gathered, "dgc:0.01", matrix), "");
  EXPECT_NE(why(summed, "dgc:0.01", matrix).find("cannot be added up"), std::string::npos);
  EXPECT_NE(why(summed, "none", matrix).find("only raw"), std::string::npos);
  EXPECT_NE(why(summed, "powersgd:4", matrix).find("2 rounds"), std::string::npos);
  EXPECT_NE(why(rounds, "fp16", matrix).find("1 round,"), std::string::npos);
  EXPECT_NE(why(gathered, "acpsgd:4", matrix).find("only collects"), std::string::npos);
  EXPECT_NE(why(late, "acpsgd:4", matrix).find("reduce-scatter@intra1"), std::string::npos);
  EXPECT_NE(why(summed, "acpsgd:4", Shape{64}).find("matrices"), std::string::npos);
  EXPECT_NE(why_not(summed, fit_of("fp16"), matrix, {.machines = 0, .workers = 8}).find("0 × 8"),
            std::string::npos);
}

TEST(WhyNot, AgreesWithWhatTheCodecsDeclare) {
  for (const CodecHelp& help : codec_help()) {
    const auto made = make_codec(help.example);
    ASSERT_TRUE(made.has_value()) << help.example;
    const CodecFit fit = fit_of(help.example);
    if (!fit.encodes) continue;
    EXPECT_EQ(fit.reducible, (*made)->traits().reducible) << help.example;
    EXPECT_EQ(fit.rounds, (*made)->traits().rounds) << help.example;
  }
}

}  // namespace
}  // namespace gradpress::plan
