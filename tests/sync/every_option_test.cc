// Every option of the tree against the textbook, on worlds of threads.
#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/local/local.h"
#include "plan/tree.h"
#include "support/gradient.h"
#include "support/workers.h"
#include "sync/option_runs.h"

namespace gradpress::test {
namespace {

/// Against hangs only.
constexpr std::chrono::minutes kTimeout(2);

/// Without places: these change where a codec runs and no number.
std::vector<plan::Option> paths(bool extended) {
  return plan::OptionTree({.host = false, .extended = extended}).options();
}

class EveryOption : public ::testing::TestWithParam<comm::Topology> {
 protected:
  static std::vector<OptionCase> cases(const CaseChoice& choice) {
    return cases_of(choice, GetParam());
  }

  /// Runs work(fabric) on every worker of a fresh world; it returns its complaints.
  template <class Work>
  static void expect_no_complaints(const Work& work) {
    auto world = comm::make_local_world({.topology = GetParam(), .timeout = kTimeout});
    ASSERT_TRUE(world.has_value()) << world.error().to_string();
    std::mutex mutex;
    std::string complaints;
    const auto body = [&](std::unique_ptr<Group> end) {
      auto fabric = sync::Fabric::make(std::move(end), GetParam());
      const std::string own = fabric ? work(*fabric) : fabric.error().to_string();
      const std::scoped_lock lock(mutex);
      complaints += own;
    };
    std::vector<std::thread> threads;
    for (auto& end : *world) threads.emplace_back(body, std::move(end));
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(complaints.empty()) << complaints;
  }

  static void expect_textbook(std::vector<OptionCase> all) {
    ASSERT_FALSE(all.empty());
    Textbook textbook(std::move(all), GetParam());
    expect_no_complaints([&](sync::Fabric& fabric) { return listed(run_cases(fabric, textbook)); });
  }
};

TEST_P(EveryOption, OfTheTreeAgreesWithTheTextbook) {
  const auto options = plan::OptionTree({}).options();
  ASSERT_EQ(options.size(), 4341U);
  expect_textbook(cases({.options = options, .codecs = {"topk:0.2"}, .shapes = {Shape::flat(37)}}));
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {Shape::flat(37), Shape{7, 5}, Shape::flat(1),
                                         Shape::flat(3), Shape::flat(130)};
  return all;
}

TEST_P(EveryOption, AgreesOnEverySizeWithASparsifier) {
  const auto options = paths(false);
  expect_textbook(cases({.options = options, .codecs = {"topk:0.1"}, .shapes = shapes()}));
}

TEST_P(EveryOption, AgreesOnEverySizeWithPayloadsOfUnknownLength) {
  const auto options = paths(false);
  expect_textbook(
      cases({.options = options,
             .codecs = {"redsync:0.2:exact=0:trimmed=0:reuse=1:probes=4", "topk:0.2:index=rice"},
             .shapes = shapes()}));
}

TEST_P(EveryOption, AgreesOnEverySizeWithVotes) {
  const auto options = paths(false);
  expect_textbook(cases({.options = options, .codecs = {"sign"}, .shapes = shapes()}));
}

TEST_P(EveryOption, AgreesOnEverySizeWithSigns) {
  const auto options = paths(false);
  expect_textbook(cases({.options = options, .codecs = {"efsign"}, .shapes = shapes()}));
}

TEST_P(EveryOption, AgreesOnEverySizeWithRandomRounding) {
  const auto options = paths(false);
  expect_textbook(cases({.options = options, .codecs = {"qsgd:4"}, .shapes = shapes()}));
}

TEST_P(EveryOption, LosesNothingOfRandomRoundingWithFeedback) {
  const auto options = paths(false);
  expect_textbook(cases(
      {.options = options, .codecs = {"qsgd:4"}, .shapes = {Shape::flat(37)}, .feedback = true}));
}

TEST_P(EveryOption, AgreesOnEverySizeWhereCollectivesSumPayloads) {
  const auto options = paths(true);
  expect_textbook(
      cases({.options = options, .codecs = {"fp16", "randomk:0.3"}, .shapes = shapes()}));
}

TEST_P(EveryOption, LosesNothingOfHalfPrecisionWithFeedback) {
  const auto options = paths(true);
  expect_textbook(cases(
      {.options = options, .codecs = {"fp16"}, .shapes = {Shape::flat(37)}, .feedback = true}));
}

TEST_P(EveryOption, LosesNothingOfAnyCodecAndEndsEqual) {
  const auto options = paths(true);
  std::vector<OptionCase> all;
  for (const CodecHelp& help : codec_help()) {
    const bool feedback = (*make_codec(help.example))->traits().supports_feedback;
    for (OptionCase& one : cases({.options = options,
                           .codecs = {std::string(help.example)},
                           .shapes = {Shape{13, 10}},
                           .feedback = feedback,
                           .compared = false})) {
      all.push_back(std::move(one));
    }
  }
  expect_textbook(std::move(all));
}

TEST_P(EveryOption, AgreesOnMatricesOfLowRank) {
  const auto options = paths(true);
  expect_textbook(cases({.options = options,
                         .codecs = {"acpsgd:2", "powersgd:2"},
                         .shapes = {Shape{7, 5}, Shape{3, 4, 3}, Shape{1, 6}, Shape{13, 10}}}));
}

/// What is wrong with how a message is refused, or nothing.
std::string refusal_of(const OptionCase& one, const std::string& reason, sync::Fabric& fabric) {
  const auto made = sync::Message::make({.members = one.members, .option = one.option}, fabric);
  if (made) return one.to_text() + ": was made, wanted: " + reason + "\n";
  const Status& status = made.error();
  const bool has_sentence = status.message().find(reason) != std::string::npos;
  if (status.code() == Code::kInvalidArgument && has_sentence) return {};
  return one.to_text() + ": wanted: " + reason + "; got: " + status.to_string() + "\n";
}

TEST_P(EveryOption, IsRefusedWithThePlannersSentenceWhereItDoesNotFit) {
  std::vector<std::pair<OptionCase, std::string>> misfits;
  for (const plan::Option& option : paths(true)) {
    for (const std::string codec :
         {"none", "topk:0.2", "efsign", "fp16", "randomk:0.3", "acpsgd:2", "powersgd:2"}) {
      for (const Shape& shape : {Shape{7, 5}, Shape::flat(37)}) {
        const sync::Member member{.name = "g", .shape = shape, .codec = codec};
        const std::string reason = why_not(option, member, GetParam());
        if (reason.empty()) continue;
        misfits.push_back({{.option = option, .members = {member}}, reason});
      }
    }
  }
  EXPECT_GT(misfits.size(), 1000U);
  expect_no_complaints([&](sync::Fabric& fabric) -> std::string {
    for (const auto& [one, reason] : misfits) {
      if (std::string complaint = refusal_of(one, reason, fabric); !complaint.empty()) {
        return complaint;
      }
    }
    return {};
  });
}

/// Heavy-tailed numbers, whose sums are not exact.
std::vector<float> rough_gradient(unsigned rank) { return gradient(1001, 40 + rank); }

/// One step of a raw option with this rank's rough gradient.
Result<std::vector<float>> raw_mean(sync::Fabric& fabric, const plan::Option& option) {
  std::vector<float> mean = rough_gradient(fabric.rank());
  auto message = sync::Message::make(
      {.members = {{.name = "g", .shape = Shape::flat(mean.size())}}, .option = option}, fabric);
  if (!message) return tl::unexpected(message.error());
  const std::array<std::span<float>, 1> spans = {mean};
  if (const auto done = (*message)->run(0, spans); !done) return tl::unexpected(done.error());
  return mean;
}

TEST_P(EveryOption, ThatIsRawGivesTheMeanToRounding) {
  const double workers = GetParam().workers();
  std::vector<double> sum(1001, 0.0);
  std::vector<double> magnitudes(1001, 0.0);
  for (unsigned rank = 0; rank < GetParam().workers(); ++rank) {
    const std::vector<float> gradient = rough_gradient(rank);
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      sum[i] += gradient[i];
      magnitudes[i] += std::fabs(gradient[i]);
    }
  }
  std::vector<plan::Option> raw;
  for (const plan::Option& option : paths(false)) {
    if (option.is_raw()) raw.push_back(option);
  }
  EXPECT_EQ(raw.size(), 9U);
  expect_no_complaints([&](sync::Fabric& fabric) -> std::string {
    for (const plan::Option& option : raw) {
      const auto mean = raw_mean(fabric, option);
      if (!mean) return mean.error().to_string() + "\n";
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const double wanted = sum[i] / workers;
        if (std::fabs((*mean)[i] - wanted) <= workers * 0x1.0p-24 * magnitudes[i]) continue;
        return Status::error(Code::kInternal, plan::to_text(option), ", rank ", fabric.rank(),
                             ", element ", i, ": wanted ", wanted, ", got ", (*mean)[i], "\n")
            .message();
      }
    }
    return {};
  });
}

TEST_P(EveryOption, ThatIsFlatAndRawIsTheGroupsOwnAllReduce) {
  const float weight = 1.0F / static_cast<float>(GetParam().workers());
  expect_no_complaints([&](sync::Fabric& fabric) -> std::string {
    std::vector<float> sum = rough_gradient(fabric.rank());
    const Status status = fabric.group(plan::Phase::kFlat)
                              .run({.kind = CollectiveKind::kAllReduce,
                                    .type = DataType::kFloat32,
                                    .in = bytes_of(std::as_const(sum)),
                                    .out = bytes_of(sum)});
    if (!status.is_ok()) return status.to_string() + "\n";
    const auto mean = raw_mean(fabric, *plan::parse_option("allreduce@flat"));
    if (!mean) return mean.error().to_string() + "\n";
    for (std::size_t i = 0; i < sum.size(); ++i) {
      if ((*mean)[i] == sum[i] * weight) continue;
      return Status::error(Code::kInternal, "rank ", fabric.rank(), ", element ", i, ": wanted ",
                           sum[i] * weight, ", got ", (*mean)[i], "\n")
          .message();
    }
    return {};
  });
}

/// Three tensors in one message, each with its own number.
OptionCase bucket(const plan::Option& option, const std::string& codec,
                  const std::vector<Shape>& of_shapes) {
  OptionCase one{.option = option};
  for (const Shape& shape : of_shapes) {
    const std::uint64_t tensor = 2 + 3 * one.members.size();
    one.members.push_back({.name = std::string("t").append(std::to_string(tensor)),
                           .shape = shape,
                           .tensor = tensor,
                           .codec = codec});
  }
  return one;
}

TEST_P(EveryOption, CarriesTensorsTogetherAsItDoesAlone) {
  std::vector<OptionCase> all;
  const std::vector<Shape> three = {Shape::flat(37), Shape{7, 5}, Shape::flat(3)};
  for (const std::string codec : {"topk:0.2", "efsign", "randomk:0.3"}) {
    const auto options = paths(codec == "randomk:0.3");
    for (std::size_t i = 0; i < options.size(); i += 5) {
      const OptionCase one = bucket(options[i], codec, three);
      if (why_not(one.option, one.members[0], GetParam()).empty()) all.push_back(one);
    }
  }
  for (const plan::Option& option : paths(true)) {
    for (const std::string codec : {"acpsgd:2", "powersgd:2"}) {
      OptionCase one = bucket(option, codec, {Shape{7, 5}, Shape{4, 9}, Shape{3, 2, 2}});
      if (!why_not(option, one.members[0], GetParam()).empty()) continue;
      all.push_back(one);
      if (codec == "powersgd:2") continue;
      // What has no matrix view travels beside the factors as it is.
      one.members[1].shape = Shape::flat(37);
      one.members[1].codec = "none";
      all.push_back(one);
    }
  }
  expect_textbook(std::move(all));
}

/// As in processes of their own: nothing is shared but the group.
TEST_P(EveryOption, NeedsNothingOfAWorldButItsFabric) {
  std::vector<plan::Option> options;
  for (const plan::Option& option : paths(false)) {
    if (option.is_flat() || option.encodes() == 3) options.push_back(option);
  }
  expect_no_complaints([&](sync::Fabric& fabric) {
    return listed(run_options_on(fabric, options, {"topk:0.2", "efsign"}));
  });
}

/// Groups of one member exchange nothing.
class OptionInNarrowWorld : public EveryOption {};

TEST_P(OptionInNarrowWorld, AgreesWithTheTextbook) {
  const auto options = paths(true);
  expect_textbook(cases({.options = options,
                         .codecs = {"topk:0.2", "randomk:0.3", "acpsgd:2", "powersgd:2"},
                         .shapes = {Shape{7, 5}, Shape::flat(2)}}));
}

std::string world_name(const ::testing::TestParamInfo<comm::Topology>& world) {
  return std::to_string(world.param.machines) + "x" +
         std::to_string(world.param.workers_per_machine);
}

INSTANTIATE_TEST_SUITE_P(Worlds, EveryOption,
                         ::testing::Values(comm::Topology{.machines = 2, .workers_per_machine = 2},
                                           comm::Topology{.machines = 2, .workers_per_machine = 3}),
                         world_name);
INSTANTIATE_TEST_SUITE_P(Worlds, OptionInNarrowWorld,
                         ::testing::Values(comm::Topology{.machines = 1, .workers_per_machine = 1},
                                           comm::Topology{.machines = 1, .workers_per_machine = 3},
                                           comm::Topology{.machines = 3, .workers_per_machine = 1}),
                         world_name);

}  // namespace
}  // namespace gradpress::test
