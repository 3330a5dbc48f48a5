// Codec "auto" over emulated links, from the first raw step to its decision.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <limits>

#include "engine/auto_world.h"
#include "engine/engine_workers.h"
#include "engine/profile_cache.h"

namespace gradpress {
namespace {

using Gradients = test::EngineGradients;

constexpr comm::Topology kFourHosts{.machines = 4, .workers_per_machine = 1};

std::vector<EngineTensor> matrices() {
  return {{.name = "a", .shape = Shape{256, 384}},
          {.name = "b", .shape = Shape{256, 384}},
          {.name = "c", .shape = Shape{256, 384}}};
}

/// Called on every rank after each step.
using AfterStep = std::function<void(unsigned rank, unsigned step, Engine& engine)>;

struct End {
  std::string running;
  Plan plan;
  std::vector<std::string> lines;
};

/// Steps until auto has decided; checks on the way that all ranks hold the same and nothing is
/// lost.
End fly(const comm::Link& link, const AutoOptions& automatic, unsigned steps,
        const AfterStep& after_step = {}) {
  auto world = comm::make_local_world({.topology = kFourHosts, .inter = link});
  End end;
  std::mutex mutex;
  std::vector<double> balance(256 * 384, 0.0);
  std::vector<std::vector<std::vector<float>>> last(4);
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < kFourHosts.workers(); ++rank) {
    threads.emplace_back([&, rank] {
      EngineOptions options{.codec = "auto", .automatic = automatic};
      // What a busy machine takes between steps must not decide.
      options.automatic.settle_steps = 1e6;
      options.log = [&, rank](std::string_view line) {
        const std::scoped_lock lock(mutex);
        if (rank == 0) end.lines.emplace_back(line);
      };
      auto engine = Engine::make(
          {.group = std::move((*world)[rank]), .machines = 4, .workers_per_machine = 1}, matrices(),
          options);
      ASSERT_TRUE(engine.has_value()) << engine.error().message();
      std::mt19937 random(rank);
      std::normal_distribution<float> normal;
      const auto add = [&](std::span<const float> values, double factor) {
        const std::scoped_lock lock(mutex);
        for (std::size_t i = 0; i < values.size(); ++i) balance[i] += factor * values[i];
      };
      for (unsigned step = 0; step < steps; ++step) {
        Gradients gradients(3, std::vector<float>(256 * 384));
        for (auto& gradient : gradients) {
          for (float& value : gradient) value = normal(random);
        }
        add(gradients[0], -1.0);
        const auto done = test::run_step(**engine, gradients);
        ASSERT_TRUE(done.has_value()) << done.error().message();
        add(gradients[0], 1.0);
        last[rank] = gradients;
        if (after_step) after_step(rank, step, **engine);
      }
      std::vector<float> residual(256 * 384);
      (*engine)->copy_residual(0, residual);
      add(residual, 1.0);
      if (rank != 0) return;
      end.running = (*engine)->running();
      end.plan = (*engine)->plan();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (unsigned rank = 1; rank < 4; ++rank) EXPECT_TRUE(test::same_bits(last[0], last[rank]));
  for (const double value : balance) EXPECT_LT(std::abs(value), 2e-3);
  return end;
}

std::string all(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + '\n';
  return text;
}

TEST(Auto, CompressesOnASlowLinkAndStaysThere) {
  // A raw step takes 140 ms at 100 Mb/s, a compressed one a few: no noise turns that around.
  const End end = fly(*comm::parse_link("100mbit"),
                      {.codecs = {"acpsgd:4"}, .raw_steps = 2, .window = 3, .cache = "-"}, 40);
  // The plan, or the one codec of it for all: whichever was faster by a hair.
  const bool plan = end.running.find("keeps the plan") != std::string::npos;
  const bool codec = end.running.find("keeps acpsgd:4 for all tensors") != std::string::npos;
  EXPECT_TRUE(plan || codec) << end.running;
  for (const PlannedTensor& tensor : end.plan.tensors) EXPECT_EQ(tensor.codec, "acpsgd:4");
  EXPECT_NE(all(end.lines).find("auto: keeps "), std::string::npos) << all(end.lines);
  EXPECT_EQ(all(end.lines).find("e+"), std::string::npos) << all(end.lines);
}

TEST(Auto, DoesNotCompressWhereNothingIsGained) {
  // Half of the elements with their indices are as many bytes as all of them.
  const End end = fly({}, {.codecs = {"topk:0.5"}, .raw_steps = 2, .window = 2, .cache = "-"}, 60);
  EXPECT_NE(end.running.find("auto (none"), std::string::npos) << end.running;
  for (const PlannedTensor& tensor : end.plan.tensors) EXPECT_EQ(tensor.codec, "none");
  EXPECT_NE(all(end.lines).find("do not compress"), std::string::npos) << all(end.lines);
}

TEST(Auto, KeepsItsProfileForTheNextRun) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / "gradpress_auto_engine_test").string();
  std::filesystem::remove_all(folder);
  const AutoOptions automatic{.codecs = {"topk:0.5"}, .raw_steps = 1, .window = 1, .cache = folder};
  (void)fly({}, automatic, 40);
  unsigned files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(folder)) ++files;
  EXPECT_EQ(files, 1U);
  std::filesystem::remove_all(folder);
}

TEST(Auto, WithItsOwnCodecsNeverEndsSlowerAndSaysWhatItDid) {
  // A link without limits, and codecs that take time: raw, or else a plan that was measured faster.
  const End end = fly({}, {.raw_steps = 3, .window = 3, .cache = "-"}, 90);
  unsigned verdicts = 0;
  for (const std::string& line : end.lines) {
    if (line.starts_with("auto: do not compress") || line.starts_with("auto: stays with") ||
        line.starts_with("auto: keeps")) {
      ++verdicts;
    }
  }
  EXPECT_EQ(verdicts, 1U) << all(end.lines);
  const bool raw = end.running.find("auto (none") != std::string::npos;
  const bool kept = all(end.lines).find("auto: keeps") != std::string::npos;
  EXPECT_NE(raw, kept) << end.running << '\n' << all(end.lines);
  for (const PlannedTensor& tensor : end.plan.tensors) {
    EXPECT_TRUE(kept || tensor.codec == "none") << tensor.codec;
  }
}

TEST(Auto, ASecondEngineDoesNotMeasureAgain) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / "gradpress_auto_reuse_test").string();
  std::filesystem::remove_all(folder);
  const AutoOptions automatic{.codecs = {"efsign"}, .raw_steps = 1, .window = 1, .cache = folder};
  // The link is what a step and the probe wait for. A machine that is busy with other things all
  // the same may keep a probe waiting until the profile seems out of date, and be right to measure
  // again: one engine of several must find it fresh.
  const comm::Link link = *comm::parse_link("50mbit");
  const auto steps_that_measure = [&](unsigned steps) {
    std::atomic<unsigned> measuring = 0;
    (void)fly(link, automatic, steps, [&](unsigned rank, unsigned, Engine& engine) {
      const bool measures = engine.running().find("measuring links") != std::string::npos;
      if (rank == 0 && measures) ++measuring;
    });
    return measuring.load();
  };
  EXPECT_GT(steps_that_measure(40), 0U);
  constexpr unsigned kTries = 6;
  unsigned tries = 0;
  while (tries < kTries && steps_that_measure(40) > 0) ++tries;
  EXPECT_LT(tries, kTries) << "the first engine's profile was there";
  std::filesystem::remove_all(folder);
}

TEST(Auto, WhatIsComparedCountsInResidualsScalesAndCheckpoints) {
  // While candidates take turns, each keeps the residuals of its own steps.
  std::atomic<unsigned> compared = 0;
  const AutoOptions automatic{
      .codecs = {"efsign", "acpsgd:4"}, .raw_steps = 2, .window = 3, .cache = "-"};
  (void)fly(*comm::parse_link("100mbit"), automatic, 30,
            [&](unsigned, unsigned step, Engine& engine) {
              if (engine.running().find("trying") == std::string::npos) return;
              ++compared;
              std::vector<float> kept(256 * 384);
              engine.copy_residual(0, kept);
              std::vector<float> doubled(kept.size());
              engine.scale_residuals(2.0F);
              engine.copy_residual(0, doubled);
              for (float& value : kept) value *= 2.0F;
              EXPECT_TRUE(test::same_bits({kept}, {doubled})) << "after step " << step;
              engine.scale_residuals(0.5F);
              // Each rank does it after the same steps; now and then, because it ends the turns'
              // separate residuals.
              if (step % 5 != 0) return;
              engine.copy_residual(0, kept);
              const auto saved = checkpoint_residuals(engine.checkpoint());
              ASSERT_TRUE(saved.has_value()) << saved.error().message();
              for (std::size_t i = 0; i < kept.size(); ++i) {
                ASSERT_NEAR((*saved)[0][i], kept[i], 1e-4) << "element " << i << ", step " << step;
              }
            });
  EXPECT_GT(compared.load(), 0U);
}

TEST(Auto, ACheckpointGoesOnWithThePlanItWasTakenUnder) {
  const comm::Link link = *comm::parse_link("100mbit");
  const AutoOptions automatic{
      .codecs = {"acpsgd:4"}, .raw_steps = 2, .window = 2, .settle_steps = 1e6, .cache = "-"};
  constexpr unsigned kSaved = 40;
  std::vector<std::vector<std::byte>> saved(4);
  std::vector<Plan> plans(4);
  std::vector<Gradients> expected(4);
  const auto given = [](unsigned rank, unsigned step) {
    Gradients gradients(3, std::vector<float>(256 * 384));
    std::mt19937 random(1000 * step + rank);
    std::normal_distribution<float> normal;
    for (auto& gradient : gradients) {
      for (float& value : gradient) value = normal(random);
    }
    return gradients;
  };
  const auto two_more = [&](unsigned rank, Engine& engine) {
    Gradients last;
    for (unsigned step = 0; step < 2; ++step) {
      last = given(rank, step);
      const auto done = test::run_step(engine, last);
      EXPECT_TRUE(done.has_value()) << done.error().message();
      EXPECT_EQ(done.value_or(EngineStep{}).step, kSaved + step);
    }
    return last;
  };
  for (const bool first : {true, false}) {
    auto world = comm::make_local_world({.topology = kFourHosts, .inter = link});
    std::vector<std::thread> threads;
    for (unsigned rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        auto engine = Engine::make(
            {.group = std::move((*world)[rank]), .machines = 4, .workers_per_machine = 1},
            matrices(), {.codec = "auto", .automatic = automatic});
        ASSERT_TRUE(engine.has_value()) << engine.error().message();
        if (first) {
          for (unsigned step = 0; step < kSaved; ++step) {
            Gradients gradients = given(rank, 100 + step);
            ASSERT_TRUE(test::run_step(**engine, gradients).has_value());
          }
          plans[rank] = (*engine)->plan();
          saved[rank] = (*engine)->checkpoint();
          expected[rank] = two_more(rank, **engine);
          return;
        }
        // It runs raw at first, as every auto does, and goes on with what had been found.
        const Status status = (*engine)->restore(saved[rank]);
        ASSERT_TRUE(status.is_ok()) << status.message();
        EXPECT_NE((*engine)->running().find("the checkpoint's plan"), std::string::npos)
            << (*engine)->running();
        const Plan plan = (*engine)->plan();
        for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
          EXPECT_EQ(plan.tensors[i].codec, plans[rank].tensors[i].codec);
          EXPECT_EQ(plan.tensors[i].option, plans[rank].tensors[i].option);
        }
        EXPECT_TRUE(test::same_bits(two_more(rank, **engine), expected[rank])) << rank;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // Otherwise this tells nothing.
  EXPECT_EQ(plans[0].tensors[0].codec, "acpsgd:4");
}

TEST(CalibrationFor, SizesAreThoseOfWhichASliceTakesLessThanAStep) {
  const std::vector<engine::TensorSpec> tensors(40, {.name = "w", .shape = Shape{1024, 256}});
  const std::vector<std::string> codecs{"efsign"};
  const std::uint64_t model = 40ULL * 1024 * 256 * sizeof(float);
  std::size_t last = model;
  for (const unsigned machines : {2U, 4U, 16U, 64U, 1024U}) {
    const auto options =
        engine::calibration_for(tensors, codecs, {.machines = machines, .workers_per_machine = 1},
                                /*step_us=*/50'000.0, /*limit_us=*/60'000.0);
    ASSERT_GE(options.bytes.size(), 2U) << "a line needs two sizes";
    ASSERT_GE(options.elements.size(), 2U);
    EXPECT_TRUE(std::ranges::is_sorted(options.bytes));
    // All calls of the largest together move no more than half of what a raw step does.
    const std::size_t most = options.bytes.back();
    if (most > 4096) {
      EXPECT_LE((options.turns + 1) * most * machines / 2, model / 2) << machines;
    }
    EXPECT_LE(most, last);
    last = most;
  }
  for (const double step_us : {500.0, 20'000.0, 1e6, 1e8}) {
    const auto options = engine::calibration_for(
        tensors, codecs, {.machines = 4, .workers_per_machine = 1}, step_us, step_us);
    EXPECT_LE(1000.0 * static_cast<double>(options.turn.count() * (options.turns + 1)),
              step_us / 2.0);
    EXPECT_GE(options.longest_codec.count(), 1);
  }
}

TEST(Auto, RefusesCodecsThatDoNotExist) {
  auto world = comm::make_local_world({});
  const auto engine = Engine::make({.group = std::move(world->front())}, matrices(),
                                   {.codec = "auto", .automatic = {.codecs = {"nonsense:3"}}});
  ASSERT_FALSE(engine.has_value());
  EXPECT_NE(engine.error().message().find("nonsense"), std::string::npos);
}

TEST(ProfileCache, IsSharedByRankZeroAndBoundToItsKey) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "gradpress_profile_cache_test";
  const engine::ProfileKey key{.machine = "m", .backend = "local", .codecs = {"efsign"}};
  engine::ProfileKey other = key;
  other.codecs.emplace_back("topk:0.01");
  const auto file = engine::profile_file(folder.string(), key);
  ASSERT_TRUE(file.has_value());
  EXPECT_NE(*file, *engine::profile_file(folder.string(), other));
  EXPECT_FALSE(engine::profile_file("-", key).has_value());
  EXPECT_FALSE(engine::profile_file("", key).has_value()) << "nobody asked for a file";
  ASSERT_TRUE(engine::keep_profile(*file, key, {{"name", "x"}}).is_ok());
  auto world = comm::make_local_world({.topology = {.machines = 1, .workers_per_machine = 2}});
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      engine::Exchange exchange(*(*world)[rank]);
      const std::optional<std::filesystem::path> mine =
          rank == 0 ? file : std::optional<std::filesystem::path>("/nowhere");
      const auto found = engine::shared_profile(exchange, mine, key);
      ASSERT_TRUE(found.has_value() && found->has_value());
      EXPECT_EQ((**found)["name"], "x");
      const auto wrong = engine::shared_profile(exchange, mine, other);
      ASSERT_TRUE(wrong.has_value());
      EXPECT_FALSE(wrong->has_value());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gradpress
