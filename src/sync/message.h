// One message's journey: 1..n tensors through any option, with any codec, on any group.
//
// A message is a list of stages, one per action of its option. A stage is codec work, done by the
// caller's thread, or a collective, started on its group and waited for. run() does all in a row;
// an engine runs the stages of many messages beside each other, each stage on its lane.
//
// What a worker holds after each stage is defined by the option alone; see docs/options.md.
#pragma once

#include <gradpress/codec.h>
#include <gradpress/group.h>
#include <gradpress/shape.h>
#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/momentum.h"
#include "plan/option.h"
#include "sync/buffer_pool.h"
#include "sync/fabric.h"
#include "sync/memory.h"
#include "sync/snapshot.h"
#include "sync/store.h"

namespace gradpress::sync {

struct Member {
  std::string name = {};  ///< names the tensor in errors
  Shape shape = {};
  std::uint64_t tensor = 0;  ///< its number in the model, the same on every rank
  /// Of the members of one message all have the same codec, but where payloads are summed by
  /// collectives: there `none` may travel beside another codec with float32 payloads (ACP-SGD's
  /// 1-D tensors).
  std::string codec = "none";
};

struct MessageSpec {
  std::vector<Member> members = {};
  plan::Option option = {};
  std::uint64_t seed = 0;
  /// Error feedback at every encode that loses something; none: what the codec needs.
  std::optional<bool> feedback = {};
  /// Accumulates before the first encode of members whose codec is a sparsifier. `workers` is not
  /// looked at: the message knows how many it stands for.
  std::optional<codec::MomentumOptions> momentum = {};
};

struct Stage {
  plan::Action action = {};
  Link link = Link::kInter;  ///< of a collective
  bool first_codec = false;  ///< the first Comp: can be run member by member, as each is ready
};

/// What a message may share with others.
struct MessageSurroundings {
  /// What the members keep between steps is looked for there and put there; none: the message has
  /// it for itself. It must live for the call.
  Memories* memories = nullptr;
  /// Where raw messages that are one collective take their buffer from while it runs; none: as
  /// others.
  std::shared_ptr<BufferPool> pool = {};
  /// What other messages work in, from their first stage to end(); none: a store of its own. Of the
  /// messages with one store, one at a time is between those: the caller's duty.
  std::shared_ptr<Store> store = {};
};

/// How a step ended, the same on every rank.
enum class Outcome : std::uint8_t {
  kDone,
  /// A gradient somewhere held NaN or infinity or, where it is encoded, a value of kGradientLimit
  /// and above; or the sum left float's range. All gradients of the message are NaN now on every
  /// rank, and all that the message keeps is as it was before the step, bit for bit.
  kNonFinite,
};

/// Threads: one at a time; stages of different messages may run at the same time on different
///          threads. Collectives of one group are started in the same order on all ranks: the
///          caller's duty.
/// Memory:  residuals, and buffers for this option, its own or shared; nothing is allocated after
///          the first step.
/// Errors:  whatever stage returns one, the step is over on this rank. All that the message keeps
///          is as it was before it; the gradients are unspecified.
class Message {
 public:
  /// Requires: the fabric outlives the message.
  /// Errors:   kInvalidArgument: no members, a codec that does not exist, an option that the codec
  ///           or the topology cannot take (plan::why_not's sentence).
  static Result<std::unique_ptr<Message>> make(const MessageSpec& spec, Fabric& fabric,
                                               const MessageSurroundings& surroundings = {});
  ~Message();

  const MessageSpec& spec() const;
  /// What all ranks must agree on, as text: members, shapes, codecs, option, topology, seed.
  std::string description() const;
  std::span<const Stage> stages() const;

  /// Begins a step. gradients[i] is member i's, read by the first stages and overwritten by the
  /// last with the mean over all workers. Requires: they live until the step's end. A step that was
  /// begun and not ended is given up, as by rewind().
  /// Errors: kInvalidArgument on sizes that are not the members'.
  Status begin(std::uint64_t step, std::span<const std::span<float>> gradients);
  /// The same in parts: each member's gradient is handed over when it is ready. run_codec(stage,
  /// member) needs that member's alone, start() and whole codec stages need all.
  Status begin(std::uint64_t step);
  Status bind(std::size_t member, std::span<float> gradient);
  /// One member's part of the first Comp (see Stage::first_codec), in any order of members; the
  /// others' may come later.
  Status run_codec(std::size_t stage, std::size_t member);
  /// A whole codec stage, or what is left of it.
  Status run_codec(std::size_t stage);
  /// Starts a collective stage; wait() ends it. Between them nothing else of this message runs.
  Status start(std::size_t stage);
  Status wait(std::size_t stage);
  bool done(std::size_t stage) const;
  /// After the last stage.
  Result<Outcome> end();
  /// Takes back the step that ended last: residuals, momentum, factors, parity, what was kept for
  /// the next step's gradient are as they were before it, bit for bit. Nothing after a step that
  /// ended as kNonFinite. Requires: nothing else was called since end(). Cost: nothing.
  void rewind();

  /// All of it in a row.
  Result<Outcome> run(std::uint64_t step, std::span<const std::span<float>> gradients);

  /// Bytes this rank sends in that step, per link: what the audit compares with the groups'
  /// counters. Where sizes alternate (ACP-SGD), it is counted from the step begun last, or else
  /// from step 0, as if every step since ended well.
  SentBytes promised_bytes(std::uint64_t step) const;
  SentBytes promised_bytes(std::uint64_t step, std::size_t stage) const;

  /// What error feedback keeps of a member, as this rank's share: the sum over all ranks' shares is
  /// all that was not yet applied, in units of one worker's gradient (identical replicas are
  /// counted once). take leaves zero behind, so that a new message can be given it: nothing is lost
  /// when a plan changes.
  /// Requires: out.size() == elements; between steps.
  void take_residual(std::size_t member, std::span<float> out);
  void copy_residual(std::size_t member, std::span<float> out) const;
  /// Adds to the first encode's residual; without an encode or feedback it is kept and added to the
  /// next step's gradient.
  Status give_residual(std::size_t member, std::span<const float> residual);
  /// Takes what add_to_next() or give_residual() kept for the next step's gradient, and that alone.
  /// False: there was nothing, `out` is untouched. Requires: as take_residual.
  bool take_next(std::size_t member, std::span<float> out);
  /// Whether give_residual() puts a share into a state of this rank's own, before which nothing is
  /// summed: the same on all ranks.
  bool keeps_residual(std::size_t member) const;
  /// Keeps it for the next step's gradient, whatever the codec: before momentum, where there is
  /// any. Errors: as give_residual.
  Status add_to_next(std::size_t member, std::span<const float> gradient);
  /// Multiplies all residuals (a changed loss scale), and momentum. Requires: a finite factor.
  void scale_residuals(float factor);

  /// Whether momentum accumulates before the member's first encode: the same on all ranks.
  bool has_momentum(std::size_t member) const;
  /// How many workers' gradients the first encode's input is the sum of.
  std::uint64_t summed_workers() const;
  /// This rank's share: over all ranks they add up to the workers' momentum (identical replicas are
  /// counted once). Requires: as copy_residual.
  void copy_momentum(std::size_t member, std::span<float> out) const;
  /// Replaces it by the part of `momentum`, a whole tensor's, that this rank's first encode holds:
  /// that of summed_workers() workers together. Without momentum: nothing.
  Status load_momentum(std::size_t member, std::span<const float> momentum);

  /// All that the next step needs of a member; load() wants it of the same member, codec and
  /// option. Between steps.
  void save(std::size_t member, ByteWriter& out) const;
  Status load(std::size_t member, ByteReader& in);
  /// Adds what copy_residual() gave when `in` was saved, without a message.
  /// Errors: kCorruptPayload on bytes that are not a tensor's of out.size() elements.
  static Status add_saved_residual(ByteReader& in, std::span<float> out);

 private:
  class Impl;
  explicit Message(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Whether every rank has the same description; costs one small all-gather. To be called before
/// the first step of a plan.
/// Errors: kInvalidArgument on every rank, naming two ranks that differ and the first line that
///         does; the group's own.
Status check_agreement(Group& world, std::string_view description);

}  // namespace gradpress::sync
