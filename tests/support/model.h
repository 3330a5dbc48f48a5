// What a group of workers must hold after a step, by textbook arithmetic in double: one element at
// a time, no laziness, no SIMD, written from docs/wire_format.md alone.
//
// Many codecs decide (a sign, a rounding, a selection), and single precision may decide otherwise
// than double where the two are as good as equal; some (dgc, redsync) leave room by design. So a
// model does not guess: it is shown what was sent, judges whether the method allows it, and carries
// on from there. Its residual is exact, and it knows how far a codec's rounding may have led away.
#pragma once

#include <gradpress/shape.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "spec/spec.h"
#include "support/reading.h"

namespace gradpress::test {

/// One worker's payloads of one step, in the order of the shards.
using Payloads = std::vector<std::vector<std::byte>>;

struct ModelOptions {
  codec::Spec spec{};
  Shape shape{};
  std::uint32_t workers = 1;
  std::uint64_t seed = 0;
  std::uint64_t tensor = 0;
  std::uint32_t site = 0;
  bool feedback = false;
};

/// A step's result, each element with the error that single precision explains.
struct Expected {
  std::vector<double> values;
  std::vector<double> tolerance;
};

class Model {
 public:
  virtual ~Model() = default;

  /// The result of a plain exchange of grads[worker], given what each worker sent.
  virtual Expected step(const std::vector<std::vector<float>>& grads, std::uint64_t step,
                        const std::vector<Payloads>& sent) = 0;

  std::vector<std::vector<double>> residuals;  ///< per worker
  std::vector<std::vector<double>> noise;  ///< what a codec's residual may be off by, per worker
  /// What the method does not allow, as sentences; empty when all is well.
  std::vector<std::string> complaints;

 protected:
  explicit Model(const ModelOptions& options);
  void complain(std::string text);

  ModelOptions options_;
};

std::unique_ptr<Model> make_model(const ModelOptions& options);

/// One shard as its encode met it.
struct Sighting {
  std::span<const double> x;      ///< gradient plus residual
  std::span<const double> noise;  ///< how far the codec's own x may be from it
  std::span<const std::byte> payload;
  Words words;
  std::uint64_t encodes;  ///< encodes of this state before this one
  Words votes;            ///< the whole tensor's, for zeros of votes
  std::uint64_t begin;    ///< of the shard in the tensor
};

/// Says what is wrong with a shard's payload, or nothing. One per codec; see the model_*.cc files.
using Judge = std::string (*)(const codec::Spec& spec, const Sighting& seen);
std::string judge_dense(const codec::Spec& spec, const Sighting& seen);
std::string judge_signs(const codec::Spec& spec, const Sighting& seen);
std::string judge_codes(const codec::Spec& spec, const Sighting& seen);
std::string judge_terngrad(const codec::Spec& spec, const Sighting& seen);
std::string judge_kashin(const codec::Spec& spec, const Sighting& seen);
std::string judge_natural(const codec::Spec& spec, const Sighting& seen);
std::string judge_selection(const codec::Spec& spec, const Sighting& seen);
std::string judge_randomk(const codec::Spec& spec, const Sighting& seen);
std::string judge_redsync_q(const codec::Spec& spec, const Sighting& seen);

/// The two low-rank codecs on a matrix: their results do not depend on which basis spans a factor.
std::unique_ptr<Model> make_low_rank_model(const ModelOptions& options);

}  // namespace gradpress::test
