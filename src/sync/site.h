// One encode site of an option: every member's state there, and the work of encoding into blocks
// and decoding out of them.
#pragma once

#include <gradpress/codec.h>
#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codec/momentum.h"
#include "sync/memory.h"
#include "sync/route.h"
#include "sync/snapshot.h"
#include "sync/workspace.h"

namespace gradpress::sync {

/// What the states of one message have in common.
struct MemberCodec {
  const Codec* codec = nullptr;
  const Codec* first = nullptr;  ///< at the first site; differs where momentum goes before it
  Shape shape = {};
  std::uint64_t tensor = 0;
  std::string name = {};
};

struct SiteOptions {
  unsigned site = 0;
  std::uint64_t seed = 0;
  std::optional<bool> feedback = {};
  std::uint32_t workers = 1;
  DataType payload_type = DataType::kBytes;
  std::uint64_t message = 0;  ///< what frames name it by
};

/// Whether a gradient that is not finite has been met, here or by whoever sent what is decoded.
enum class Health : std::uint8_t { kGood, kPoisoned };

/// Threads: one at a time.
class Site {
 public:
  /// `task` is this rank's encode, null when it only decodes here. States that the memories hold
  /// already are used, others are made and put there.
  /// Errors: make_state's; kInvalidArgument on a memory's state of another shape.
  static Result<Site> make(std::span<const MemberCodec> members, const SiteOptions& options,
                           const EncodeTask* task,
                           std::span<const std::shared_ptr<TensorMemory>> memories);

  /// What encode() wants of the workspace's scratch.
  std::size_t scratch_bytes() const { return scratch_bytes_; }

  /// Encodes one member's input. `step` as in begin(). Poisoned: the residual is as it was.
  Result<Health> encode(const EncodeTask& task, std::size_t member, std::uint64_t step,
                        Workspace& memory);
  /// After all members: headers and checksums; poisoned blocks say so or are NaN.
  void seal(const EncodeTask& task, std::uint64_t step, Health health, Workspace& memory);

  /// Writes the sum of the blocks to the outputs, and the result where the task is the last.
  /// Poisoned: the outputs are unspecified.
  /// Errors: kCorruptPayload, naming sender and tensor.
  Result<Health> decode(const DecodeTask& task, std::uint64_t step, Workspace& memory);

  /// Before a step: the last one counts.
  void commit();
  /// Takes back what the step since commit() did to the states, bit for bit.
  void rewind();

  bool has_feedback(std::size_t member) const;
  /// Adds a member's residual to its place in the tensor.
  void add_residual(const EncodeTask& task, std::size_t member, std::span<float> tensor) const;
  Status load_residual(std::size_t member, std::span<const float> residual);
  void clear_residual(std::size_t member);
  void scale_residuals(float factor);

  /// Null where the member's encode here has none.
  codec::MomentumState* momentum(std::size_t member) const;
  /// Where an encode with feedback keeps its part of the tensor's residual, and all else it keeps.
  void save(std::size_t member, ByteWriter& out) const;
  Status load(std::size_t member, ByteReader& in);

 private:
  struct Kept {
    std::shared_ptr<State> state;
    bool encodes = false;  ///< false: this rank only decodes here, by an empty state
  };

  Site(std::span<const MemberCodec> members, const SiteOptions& options)
      : members_(members), options_(options) {}

  Result<std::size_t> encode_blocks(const EncodeTask& task, std::size_t member,
                                    const EncodeArgs& args, Workspace& memory);
  Result<Health> check_blocks(const DecodeTask& task, std::uint64_t step, Workspace& memory) const;
  Status decode_member(const DecodeTask& task, std::size_t member, std::uint64_t step,
                       Workspace& memory);
  const Codec& codec(std::size_t member) const {
    return options_.site == 0 ? *members_[member].first : *members_[member].codec;
  }
  codec::FrameKey key(std::uint64_t step, const PlacedBlock& block) const;

  std::span<const MemberCodec> members_;  ///< the message's
  SiteOptions options_;
  std::vector<Kept> kept_;  ///< per member
  std::size_t scratch_bytes_ = 0;
  std::vector<std::size_t> shard_bytes_;
};

}  // namespace gradpress::sync
