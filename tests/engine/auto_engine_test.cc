// Codec "auto" over emulated links, from the first raw step to its decision.
#include <filesystem>
#include <limits>

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

struct End {
  std::string running;
  Plan plan;
  std::vector<std::string> lines;
};

/// Steps until auto has decided; checks on the way that all ranks hold the same and nothing is
/// lost.
End fly(const comm::Link& link, const AutoOptions& automatic, unsigned steps) {
  auto world = comm::make_local_world({.topology = kFourHosts, .inter = link});
  End end;
  std::mutex mutex;
  std::vector<double> balance(256 * 384, 0.0);
  std::vector<std::vector<std::vector<float>>> last(4);
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < kFourHosts.workers(); ++rank) {
    threads.emplace_back([&, rank] {
      EngineOptions options{.codec = "auto", .automatic = automatic};
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
  EXPECT_NE(end.running.find("compress 3 of 3 tensors"), std::string::npos) << end.running;
  for (const PlannedTensor& tensor : end.plan.tensors) EXPECT_EQ(tensor.codec, "acpsgd:4");
  EXPECT_NE(all(end.lines).find("stays with the plan"), std::string::npos) << all(end.lines);
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
