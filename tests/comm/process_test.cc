// Rank, size and store from what different launchers set.
#include "comm/process.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace gradpress::comm {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

Result<ProcessWorld> world_of(const Variables& variables, const ProcessArguments& arguments = {}) {
  return find_process_world(arguments, [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

void expect_refused(const Variables& variables, std::string_view word) {
  const auto world = world_of(variables);
  ASSERT_FALSE(world.has_value());
  EXPECT_EQ(world.error().code(), Code::kInvalidArgument);
  EXPECT_NE(world.error().message().find(word), std::string::npos) << world.error().message();
}

const Variables kTorchrun = {{"RANK", "5"},          {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},    {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "ten"}, {"MASTER_PORT", "1234"}};

TEST(ProcessWorld, UnderstandsTorchrun) {
  const auto world = world_of(kTorchrun);
  ASSERT_TRUE(world.has_value()) << world.error().to_string();
  EXPECT_EQ(world->rank, 5U);
  EXPECT_EQ(world->topology().machines, 2U);
  EXPECT_EQ(world->topology().workers_per_machine, 4U);
  EXPECT_EQ(world->store.text(), "ten:1234");
  EXPECT_TRUE(world->port_is_shared);
  EXPECT_FALSE(world->hosts_store);
}

TEST(ProcessWorld, UnderstandsMpirunAndSrun) {
  for (const Variables& variables : {Variables{{"OMPI_COMM_WORLD_RANK", "3"},
                                               {"OMPI_COMM_WORLD_SIZE", "4"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
                                     Variables{{"PMI_RANK", "3"},
                                               {"PMI_SIZE", "4"},
                                               {"MPI_LOCALRANKID", "3"},
                                               {"MPI_LOCALNRANKS", "4"}},
                                     Variables{{"PMIX_RANK", "3"},
                                               {"SLURM_NTASKS", "4"},
                                               {"SLURM_LOCALID", "3"},
                                               {"SLURM_NTASKS_PER_NODE", "4"}},
                                     Variables{{"SLURM_PROCID", "3"},
                                               {"SLURM_NTASKS", "4"},
                                               {"SLURM_LOCALID", "3"},
                                               {"SLURM_NTASKS_PER_NODE", "4"}}}) {
    const auto world = world_of(variables);
    ASSERT_TRUE(world.has_value()) << world.error().to_string();
    EXPECT_EQ(world->rank, 3U);
    EXPECT_EQ(world->size, 4U);
    EXPECT_EQ(world->topology().machines, 1U);
    EXPECT_EQ(world->store.host, "127.0.0.1") << "all on one machine";
  }
}

TEST(ProcessWorld, TakesTheFirstThatHasBothRankAndSize) {
  const auto world = world_of({{"RANK", "1"},  // without a size it means nothing
                               {"OMPI_COMM_WORLD_RANK", "0"},
                               {"OMPI_COMM_WORLD_SIZE", "1"},
                               {"SLURM_PROCID", "7"},
                               {"SLURM_NTASKS", "8"}});
  ASSERT_TRUE(world.has_value()) << world.error().to_string();
  EXPECT_EQ(world->size, 1U);
  EXPECT_EQ(world->source, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE");
}

TEST(ProcessWorld, ArgumentsGoBeforeTheEnvironment) {
  const auto world = world_of(kTorchrun, {.rank = 0,
                                          .size = 2,
                                          .local_rank = 0,
                                          .local_size = 1,
                                          .master_address = "other",
                                          .master_port = 77,
                                          .restart = 3});
  ASSERT_TRUE(world.has_value()) << world.error().to_string();
  EXPECT_EQ(world->size, 2U);
  EXPECT_EQ(world->store.text(), "other:77");
  EXPECT_TRUE(world->hosts_store);
  EXPECT_EQ(world->restart, 3U);
}

TEST(ProcessWorld, ItsOwnPortGoesBeforeTheLaunchers) {
  Variables variables = kTorchrun;
  variables["GRADPRESS_PORT"] = "99";
  EXPECT_EQ(world_of(variables)->store.port, 99U);
  EXPECT_FALSE(world_of(variables)->port_is_shared);
  variables["GRADPRESS_STORE"] = "[::1]:55";
  const auto world = world_of(variables);
  EXPECT_EQ(world->store.host, "::1");
  EXPECT_EQ(world->store.text(), "[::1]:55");
  EXPECT_FALSE(world->store_host.has_value());
  EXPECT_FALSE(world->hosts_store);
}

TEST(ProcessWorld, CountsRestarts) {
  Variables variables = kTorchrun;
  EXPECT_EQ(world_of(variables)->restart, 0U);
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  EXPECT_EQ(world_of(variables)->restart, 2U);
  variables["GRADPRESS_RESTART"] = "5";
  EXPECT_EQ(world_of(variables)->restart, 5U);
}

TEST(ProcessWorld, SaysWhichVariableIsWrong) {
  expect_refused({}, "no rank and size");
  Variables variables = kTorchrun;
  variables["WORLD_SIZE"] = "eight";
  expect_refused(variables, "WORLD_SIZE: wanted a whole number");
  variables["WORLD_SIZE"] = "5";
  expect_refused(variables, "rank 5 in a world of 5");
  variables["WORLD_SIZE"] = "9";
  expect_refused(variables, "9 ranks do not fill machines of 4");
  variables = kTorchrun;
  variables["LOCAL_RANK"] = "2";
  expect_refused(variables, "numbered machine by machine");
  variables = kTorchrun;
  variables.erase("MASTER_ADDR");
  expect_refused(variables, "MASTER_ADDR");
  variables = kTorchrun;
  variables["MASTER_PORT"] = "65536";
  expect_refused(variables, "MASTER_PORT");
  variables = kTorchrun;
  variables["GRADPRESS_STORE"] = "nowhere";
  expect_refused(variables, "wanted host:port");
}

}  // namespace
}  // namespace gradpress::comm
