// Codecs that round at random: the workers' errors average out, because they draw independently.
#include <gtest/gtest.h>

#include <cctype>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/local.h"
#include "comm/topology.h"
#include "gradpress/codec.h"
#include "gradpress/engine.h"

namespace gradpress {
namespace {

constexpr std::uint64_t kRows = 200;
constexpr std::uint64_t kCols = 256;
constexpr unsigned kSteps = 3;

/// Magnitudes in a range that no codec here cuts, the same distribution in every shard.
std::vector<float> uniform_gradient(unsigned step) {
  std::mt19937 random(7 + step);
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  std::vector<float> gradient(kRows * kCols);
  for (float& value : gradient) value = uniform(random);
  return gradient;
}

double squared_error(const std::vector<float>& got, const std::vector<float>& wanted) {
  double sum = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double off = static_cast<double>(got[i]) - static_cast<double>(wanted[i]);
    sum += off * off;
  }
  return sum;
}

/// Of one worker alone, in the mean over steps.
double error_of_one(const std::string& text) {
  const auto codec = *make_codec(text);
  auto state = *codec->make_state({.shape = {kRows, kCols}, .source = 0, .feedback = false});
  double error = 0.0;
  for (unsigned step = 0; step < kSteps; ++step) {
    const std::vector<float> gradient = uniform_gradient(step);
    std::vector<std::byte> payload(codec->payload_bound(state->shape()));
    const auto used = codec->encode(*state, {.grad = gradient, .step = step}, payload);
    EXPECT_TRUE(used.has_value());
    payload.resize(used.value_or(0));
    std::vector<float> decoded(gradient.size());
    EXPECT_TRUE(codec->decode(*state, {.payload = payload, .step = step}, decoded).is_ok());
    error += squared_error(decoded, gradient) / kSteps;
  }
  return error;
}

/// Of the mean that an engine makes of the same gradient on every worker.
double error_of_all(const std::string& codec, const std::string& option,
                    const comm::Topology& topology) {
  const std::vector<EngineTensor> model = {{.name = "w", .shape = {kRows, kCols}}};
  Plan plan{.tree = "extended",
            .machines = topology.machines,
            .workers_per_machine = topology.workers_per_machine};
  plan.tensors.push_back(
      {.name = "w", .shape = model[0].shape, .codec = codec, .option = option, .bucket = 0});
  auto world = comm::make_local_world({.topology = topology});
  std::vector<double> errors(topology.workers());
  std::vector<std::thread> threads;
  for (unsigned rank = 0; rank < topology.workers(); ++rank) {
    threads.emplace_back([&, rank] {
      auto engine = Engine::make({.group = std::move((*world)[rank]),
                                  .machines = topology.machines,
                                  .workers_per_machine = topology.workers_per_machine},
                                 model, {.plan = plan, .feedback = false});
      ASSERT_TRUE(engine.has_value()) << engine.error().to_string();
      for (unsigned step = 0; step < kSteps; ++step) {
        const std::vector<float> gradient = uniform_gradient(step);
        std::vector<float> mean = gradient;
        ASSERT_TRUE((*engine)->ready(0, mean).is_ok());
        ASSERT_TRUE((*engine)->wait().has_value());
        errors[rank] += squared_error(mean, gradient) / kSteps;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const double error : errors) EXPECT_EQ(error, errors[0]) << "ranks hold different means";
  return errors[0];
}

class IndependentRounding : public testing::TestWithParam<const char*> {};

TEST_P(IndependentRounding, ErrorOfTheMeanFallsWithTheWorkers) {
  const char* const longest =
      "Comp@device > alltoall@intra1 > alltoall@inter > allgather@inter > allgather@intra2 > "
      "Decomp@device";
  const std::string codec = GetParam();
  const double one = error_of_one(codec);
  for (const char* const option :
       {"Comp@device > allgather@flat > Decomp@device",
        "Comp@device > alltoall@flat > allgather@flat > Decomp@device",
        "Comp@device > gather@flat > broadcast@flat > Decomp@device",
        "Comp@device > alltoall@intra1 > allgather@inter > allgather@intra2 > Decomp@device",
        "Comp@device > gather@intra1 > allgather@inter > broadcast@intra2 > Decomp@device",
        longest}) {
    for (const comm::Topology topology : {comm::Topology{.machines = 1, .workers_per_machine = 2},
                                          {.machines = 2, .workers_per_machine = 2},
                                          {.machines = 2, .workers_per_machine = 4}}) {
      const double expected = one / topology.workers();
      EXPECT_NEAR(error_of_all(codec, option, topology), expected, 0.1 * expected)
          << option << ", " << topology.workers() << " workers";
    }
  }
}

TEST_P(IndependentRounding, SumsOfMachinesAreRoundedIndependently) {
  const std::string codec = GetParam();
  const double one = error_of_one(codec);
  for (const char* const option :
       {"reduce-scatter@intra1 > Comp@device > allgather@inter > Decomp@device > allgather@intra2",
        "reduce@intra1 > Comp@device > allgather@inter > Decomp@device > broadcast@intra2"}) {
    for (const unsigned machines : {2U, 4U}) {
      const double expected = one / machines;
      EXPECT_NEAR(error_of_all(codec, option, {.machines = machines, .workers_per_machine = 2}),
                  expected, 0.1 * expected)
          << option << ", " << machines << " machines";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, IndependentRounding,
                         testing::Values("natural", "terngrad:clip=0", "qsgd:2", "qsgd:4", "qsgd:8",
                                         "kashin:2", "kashin:4"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           for (char& letter : name)
                             letter = std::isalnum(letter) != 0 ? letter : '_';
                           return name;
                         });

TEST(IndependentRounding, AnEncodeOfTheSumAddsItsOwnErrorOnce) {
  const double one = error_of_one("natural");
  const double expected = one * (1.0 + 1.0 / 8.0);
  EXPECT_NEAR(error_of_all("natural",
                           "Comp@device > alltoall@flat > Decomp@device > Comp@device > "
                           "allgather@flat > Decomp@device",
                           {.machines = 2, .workers_per_machine = 4}),
              expected, 0.15 * expected);
}

}  // namespace
}  // namespace gradpress
