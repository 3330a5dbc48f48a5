// The public way to workers that are threads.
#include <gradpress/world.h>
#include <gtest/gtest.h>

#include <string>

namespace gradpress {
namespace {

TEST(LocalWorlds, AreOneEndPerWorkerByRank) {
  const auto worlds =
      make_local_worlds({.workers = 4, .workers_per_machine = 2, .link = "1gbit,50us"});
  ASSERT_TRUE(worlds.has_value()) << worlds.error().to_string();
  ASSERT_EQ(worlds->size(), 4U);
  for (unsigned rank = 0; rank < 4; ++rank) {
    const World& world = (*worlds)[rank];
    EXPECT_EQ(world.group->rank(), rank);
    EXPECT_EQ(world.group->size(), 4U);
    EXPECT_EQ(world.machines, 2U);
    EXPECT_EQ(world.workers_per_machine, 2U);
  }
}

TEST(LocalWorlds, RefuseWhatCannotBe) {
  const auto told = [](const LocalWorldOptions& options) {
    const auto worlds = make_local_worlds(options);
    EXPECT_FALSE(worlds.has_value());
    return worlds ? std::string() : worlds.error().message();
  };
  EXPECT_NE(told({.workers = 3, .workers_per_machine = 2}).find("machines of 2"),
            std::string::npos);
  EXPECT_NE(told({.workers = 3, .workers_per_machine = 0}).find("machines of 0"),
            std::string::npos);
  EXPECT_NE(told({.link = "fast"}).find("fast"), std::string::npos);
  EXPECT_FALSE(told({.workers = 0}).empty());
}

}  // namespace
}  // namespace gradpress
