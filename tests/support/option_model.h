// What every worker must hold after a step of any option: the textbook.
//
// All workers of one world in one thread, plain loops over vectors, no groups. A worker holds
// nothing, a raw piece of the tensor, or parcels (payloads of shards), and every action moves what
// it holds. The codecs are the real ones, with one state per worker and encode; what is sent where,
// what is summed and what is left over is kept here and nowhere else.
//
// Sums are exact or rounded once, and nothing is divided by the workers before the end. Another
// order of summation, or an early division, differs in last bits alone as long as no decision hangs
// on them: closest_call() says how near it came to that.
#pragma once

#include <gradpress/codec.h>
#include <gradpress/shape.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/topology.h"
#include "plan/option.h"
#include "spec/spec.h"

namespace gradpress::test {

struct OptionModelSpec {
  plan::Option option = {};
  std::string codec = {};
  Shape shape = {};
  comm::Topology topology = {};
  std::uint64_t seed = 0;
  std::uint64_t tensor = 0;
  std::optional<bool> feedback = {};
};

/// Everything here throws std::runtime_error where an option or a codec does what the model says
/// cannot be: a gradient that is counted twice or not at all, workers that end unequal.
class OptionModel {
 public:
  /// Requires: at most 64 workers; an option that fits the codec (plan::why_not).
  explicit OptionModel(const OptionModelSpec& spec);

  /// One step: what every worker holds afterwards, the mean (or the vote).
  std::vector<float> step(const std::vector<std::vector<float>>& gradients, std::uint64_t step);

  /// Whether every encode carries a residual, so that nothing is lost.
  bool conserves() const;
  /// The sum of all residuals, in units of one worker's gradient. Workers that encode the same sum
  /// hold the same residual, which is counted once.
  std::vector<double> unapplied() const;
  /// The least that any step's decisions hung on, relative to what was encoded (see close_call.h).
  double closest_call() const { return closest_call_; }

 private:
  /// Bit w: worker w's gradient is in it.
  using Workers = std::uint64_t;
  using Ranks = std::vector<unsigned>;

  /// One payload.
  struct Parcel {
    std::uint32_t shard = 0;  ///< its number among all workers' shards
    ShardRange range = {};    ///< the tensor's elements it stands for
    Workers from = 0;
    std::vector<std::byte> bytes = {};
  };
  enum class Form : std::uint8_t { kNothing, kRaw, kEncoded };
  /// What one worker holds.
  struct Holding {
    Form form = Form::kNothing;
    std::uint32_t piece = 0;  ///< which of all workers' pieces; 0 of 1: the whole tensor
    // Raw: the sum of `from`'s gradients over `range`.
    ShardRange range = {};
    Workers from = 0;
    std::vector<float> values = {};
    // Encoded, by shard and then by worker.
    std::vector<Parcel> parcels = {};
  };
  /// One encode of the option at one worker.
  struct Site {
    std::unique_ptr<State> state = {};
    ShardRange range = {};
    Workers from = 0;
  };

  std::vector<Ranks> groups(plan::Phase phase) const;

  void comp(std::size_t action, std::uint64_t step);
  void decomp(std::uint64_t step);
  void comm(const plan::Action& action);
  void comm_raw(const plan::Action& action, const Ranks& ranks);
  void comm_encoded(const plan::Action& action, const Ranks& ranks);
  void broadcast(const Ranks& ranks);
  std::vector<float> agreed_result();

  /// How many shards the Comp at `action` makes: what its later scatters divide among.
  std::uint32_t shards_made(std::size_t action) const;
  Site& site_of(unsigned worker, const Holding& holding, std::uint32_t shards);
  void encode(unsigned worker, std::uint32_t shards, unsigned round, std::uint64_t step);
  void note_decisions(const Site& site, const Holding& raw, std::uint32_t shards,
                      std::uint64_t step);
  /// The last payload of a worker, summed and put together again: round 1's input.
  static std::vector<std::byte> joined(const std::vector<Parcel>& parcels);
  std::vector<Parcel> summed(const std::vector<Parcel>& parcels) const;

  OptionModelSpec spec_;
  codec::Spec codec_spec_;
  std::unique_ptr<const Codec> codec_;
  std::vector<Holding> held_;                                 ///< by worker
  std::map<std::pair<unsigned, std::uint32_t>, Site> sites_;  ///< by worker and number of the Comp
  std::uint32_t encodes_ = 0;                                 ///< Comps so far in this step
  std::vector<std::vector<float>> gradients_;                 ///< this step's, for round 1
  double closest_call_;
};

}  // namespace gradpress::test
