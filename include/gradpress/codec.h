// Codecs: gradients to payload bytes and back, with error feedback inside the encode.
//
// A Codec is an immutable description (name, parameters, declarations). A State belongs to one
// tensor at one encode site and holds what the next step needs: residual, factors, parity, caches.
// The journey:
//
//   encode (per worker) → bytes travel → decode (adds into a destination) → finish (vote, factors)
//
// Codecs with two rounds (Power-SGD) encode, have that payload summed over the workers, encode
// again with the sum, have that summed, and then decode.
#pragma once

#include <gradpress/api.h>
#include <gradpress/shape.h>
#include <gradpress/status.h>
#include <gradpress/traits.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradpress {

/// Gradient elements of this magnitude and above are refused like infinities (kNonFinite), so that
/// no sum or sum of squares inside a codec can overflow. 2^58, about 2.9e17.
inline constexpr float kGradientLimit = 288230376151711744.0F;

/// What the next encode of one tensor at one encode site needs from the last one.
/// It keeps the last two versions of its residual, so that a step that does not count can be taken
/// back. Threads: one at a time. A failed encode or decode leaves the residual as it was.
class GRADPRESS_API State {
 public:
  virtual ~State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  virtual const Shape& shape() const noexcept = 0;
  /// Whether encode carries a residual; without, the four calls below see zeros and load ignores
  /// its input.
  virtual bool has_feedback() const noexcept = 0;
  /// Writes the residual. Requires: out.size() == elements.
  virtual void materialise(std::span<float> out) const = 0;
  /// Replaces the residual. Errors: kInvalidArgument on a wrong size, kNonFinite (the state is then
  /// unchanged).
  virtual Status load(std::span<const float> residual) = 0;
  /// Multiplies the residual (a changed loss scale, a changed learning rate). Requires: a finite
  /// factor.
  virtual void scale(float factor) = 0;
  /// The residual's L2 norm.
  virtual double norm() const = 0;

  /// All that is not the residual (factors, parity, flip, reused thresholds), for a checkpoint. May
  /// be empty.
  virtual std::vector<std::byte> save_extras() const = 0;
  /// Errors: kCorruptPayload when the bytes are not of this codec and shape (the state is then
  /// unchanged).
  virtual Status load_extras(std::span<const std::byte> bytes) = 0;

  /// What was done so far counts: rewind() takes back only what comes after. Each encode begins
  /// with it, and so do load(), scale() and load_extras(). Cost: nothing.
  virtual void commit() = 0;
  /// Takes back what an encode since commit(), and decode and finish with it, did: residual and
  /// extras are as they were, bit for bit. Cost: nothing.
  virtual void rewind() = 0;

 protected:
  State() = default;

 private:
  friend class Codec;
  std::string made_by_;  // the codec's name: factors of another rank, say, would not fit
};

struct StateOptions {
  Shape shape = {};
  /// Random numbers depend on (seed, tensor, step, site, shard) and, where a codec rounds at
  /// random, on `source`. All ranks pass the same seed: randomk and low-rank factors must draw the
  /// same numbers everywhere.
  std::uint64_t seed = 0;
  /// The tensor's number in the model.
  std::uint64_t tensor = 0;
  /// Which encode of the option this is: 0 the first, 1 the one after aggregation, …
  std::uint32_t site = 0;
  /// Number of this state's first shard among all workers' shards.
  std::uint32_t first_shard = 0;
  /// Whose data is encoded: the lowest rank that encodes the same. Codecs that round at random
  /// (natural, qsgd, terngrad) then draw other numbers for other data, so that their errors average
  /// out over the workers, and replicas of one sum make the same bytes. None: the same numbers on
  /// every rank.
  std::optional<std::uint32_t> source = {};
  /// Default: what the codec needs.
  std::optional<bool> feedback = {};
};

struct EncodeArgs {
  std::span<const float> grad = {};
  /// Payloads to make, of the tensor's shard_range pieces.
  std::uint32_t shards = 1;
  /// The training step, the same on all ranks.
  std::uint64_t step = 0;
  /// Below traits().rounds.
  unsigned round = 0;
  /// In rounds after the first: the previous round's payload, summed over the workers.
  std::span<const std::byte> reduced = {};
};

struct DecodeArgs {
  std::span<const std::byte> payload = {};
  /// Number of the payload's shard among all workers' shards (first_shard + index).
  std::uint32_t shard = 0;
  /// The step it was encoded in.
  std::uint64_t step = 0;
  /// The destination gets weight · decoded.
  float weight = 1.0F;
  /// Instead of what it holds: as if it were cleared before.
  bool overwrite = false;
  /// Votes (Combine::kVote): also adds half a vote of random sign to every element, the same on all
  /// ranks, which decides ties. For exactly one worker's payload; without it a tie is 0.
  bool casting = false;
  /// Votes: the place of dst's first element in the tensor.
  std::uint64_t begin = 0;
};

/// A compression method with its parameters. Threads: any number at once, on different states.
class GRADPRESS_API Codec {
 public:
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  /// The text make_codec takes, in its shortest form: "topk:0.01".
  const std::string& name() const noexcept { return name_; }
  const Traits& traits() const noexcept { return traits_; }

  /// α such that E‖decode(encode(x)) − x‖² ≤ (1 − α)‖x‖² for every x of this shape; none where
  /// nothing of the kind holds. 0 says "never worse than sending nothing".
  virtual std::optional<double> contraction(const Shape& shape) const = 0;
  /// ω such that E‖decode(encode(x)) − x‖² ≤ ω‖x‖², for unbiased codecs; none for biased ones.
  virtual std::optional<double> variance(const Shape& shape) const;

  /// The most bytes one payload of `shape` has, in any step. No allocation: works for shapes of any
  /// size.
  virtual std::size_t payload_bound(const Shape& shape, unsigned round = 0) const = 0;
  /// The most bytes one encode call writes: the sum of its shards' bounds.
  std::size_t encode_bound(const Shape& shape, std::uint32_t shards = 1, unsigned round = 0) const;

  /// Allocates all that encode will need; later calls allocate nothing.
  /// Errors: kInvalidArgument on more than kMaxElements, or feedback asked of a codec without.
  Result<std::unique_ptr<State>> make_state(const StateOptions& options) const;

  /// Writes the payloads of gradient + residual, shard after shard without gaps, and keeps in the
  /// residual what they do not carry. Returns the bytes written in all; shard_bytes[i] is shard i's
  /// share.
  ///
  /// Requires: out.size() >= encode_bound(...), shard_bytes.size() == args.shards, no overlap.
  /// Cost:     one pass over gradient and residual for most codecs; no allocation.
  /// Errors:   kInvalidArgument on wrong sizes or a state of another codec; kNonFinite on NaN,
  /// infinity or an element of
  ///           kGradientLimit and above: nothing of such a gradient enters the residual. `out` is
  ///           then unspecified.
  Result<std::size_t> encode(State& state, const EncodeArgs& args, std::span<std::byte> out,
                             std::span<std::size_t> shard_bytes) const;
  /// The same for one shard.
  Result<std::size_t> encode(State& state, const EncodeArgs& args, std::span<std::byte> out) const;

  /// Adds weight × (what the payload carries) to `dst`, which is exactly the payload's shard.
  /// The payload may be hostile: nothing outside the spans is read or written, and on an error
  /// `dst` is unchanged or partly added to, never beyond what valid bytes could have done. Errors:
  /// kCorruptPayload on a wrong length, an index out of range, a non-finite value;
  /// kInvalidArgument on a state of another codec.
  Status decode(State& state, const DecodeArgs& args, std::span<float> dst) const;

  /// Ends the step after the last decode: takes the vote (Combine::kVote: +1, −1, or 0 for a tie)
  /// and lets low-rank states take over the factors that arrived. `workers` is how many gradients
  /// the decoded payloads stand for.
  Status finish(State& state, std::uint32_t workers, std::span<float> dst) const;

 protected:
  Codec(std::string name, const Traits& traits) : name_(std::move(name)), traits_(traits) {}

 private:
  virtual std::unique_ptr<State> do_make_state(const StateOptions& options,
                                               bool feedback) const = 0;
  virtual Result<std::size_t> do_encode(State& state, const EncodeArgs& args,
                                        std::span<std::byte> out,
                                        std::span<std::size_t> shard_bytes) const = 0;
  virtual Status do_decode(State& state, const DecodeArgs& args, std::span<float> dst) const = 0;
  virtual Status do_finish(State& state, std::uint32_t workers, std::span<float> dst) const;
  Status check_made_here(const State& state) const;

  std::string name_;
  Traits traits_;
};

/// The codec of a text such as "none", "topk:0.01" or "redsync:0.001:reuse=20".
/// Errors: kInvalidArgument, naming the known codecs or the parameter's range.
GRADPRESS_API Result<std::unique_ptr<const Codec>> make_codec(std::string_view text);

/// One line per codec: how it is written, with an example parameter, and what it does.
struct CodecHelp {
  std::string_view usage;    ///< "topk:RATIO"
  std::string_view example;  ///< "topk:0.01"
  std::string_view about;
};
GRADPRESS_API std::span<const CodecHelp> codec_help();

}  // namespace gradpress
