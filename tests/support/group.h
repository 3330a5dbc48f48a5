// Several workers in one thread, exchanging payloads the plainest way: what sync does, without
// anything that could hide a codec's fault.
#pragma once

#include <gradpress/codec.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/model.h"

namespace gradpress::test {

enum class Exchange : std::uint8_t {
  kSummed,    ///< reducible payloads are summed element-wise in their own type, then decoded once
  kOneByOne,  ///< every payload is decoded, unless there are rounds that need the sum anyway
};

struct GroupOptions {
  std::string codec{};
  Shape shape{};
  std::uint32_t workers = 1;
  std::uint64_t seed = 1;
  std::uint64_t tensor = 3;
  std::uint32_t site = 0;
  std::optional<bool> feedback{};
  Exchange exchange = Exchange::kOneByOne;
};

class Group {
 public:
  /// Throws std::runtime_error with the status when codec or state cannot be made.
  explicit Group(const GroupOptions& options);

  /// One whole step. results[worker] and sent[worker][shard] are then what came of it.
  Status step(const std::vector<std::vector<float>>& grads, std::uint64_t step,
              std::uint32_t shards = 1);

  /// The first half of a step: every round's payloads, nothing decoded or finished yet.
  Status encode_step(const std::vector<std::vector<float>>& grads, std::uint64_t step,
                     std::uint32_t shards = 1);
  /// The payloads that hold the values: the last round's, or the first's where a tensor travels
  /// dense and has an empty last round.
  const std::vector<Payloads>& carrying() const;

  const Codec& codec() const { return *codec_; }
  State& state(std::uint32_t worker) { return *states_[worker]; }
  std::vector<float> residual(std::uint32_t worker) const;
  /// Goes on with another codec from the residuals of this one.
  Status swap_codec(const std::string& text);
  ModelOptions model_options() const;

  std::vector<std::vector<float>> results;
  std::vector<Payloads> sent;         ///< the last round's
  std::vector<Payloads> first_round;  ///< the first round's, of codecs with two

 private:
  Status encode_all(const std::vector<std::vector<float>>& grads, std::uint64_t step,
                    std::uint32_t shards, unsigned round, const std::vector<std::byte>& reduced);
  Status decode_all(std::uint32_t worker, std::uint64_t step, std::uint32_t shards);
  void make_states();

  GroupOptions options_;
  std::unique_ptr<const Codec> codec_;
  std::vector<std::unique_ptr<State>> states_;
};

/// The element-wise sum that an all-reduce makes of shard `shard`'s payloads. Requires: reducible.
std::vector<std::byte> summed(const Traits& traits, const std::vector<Payloads>& sent,
                              std::size_t shard);

/// Gradients of `workers` workers for `step`, unlike one another.
std::vector<std::vector<float>> gradients(std::size_t elements, std::uint32_t workers,
                                          std::uint64_t step, std::uint64_t seed);

/// Where a run's random data starts: the variable GRADPRESS_TEST_SEED, or a fixed number. Printed
/// once.
std::uint64_t run_seed();

/// The texts the suites run over: every registered codec's example, and further parameters where
/// these change the method.
std::vector<std::string> codec_texts();
/// A test name made of a codec's text.
std::string text_as_name(const std::string& text);

}  // namespace gradpress::test
