// The inside of a message, for the two files that share it: message.cc runs steps,
// message_memory.cc looks after what stays between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sync/description.h"
#include "sync/memory.h"
#include "sync/message.h"
#include "sync/route.h"
#include "sync/site.h"
#include "sync/workspace.h"

namespace gradpress::sync {

class Message::Impl {
 public:
  static Result<std::unique_ptr<Impl>> make(const MessageSpec& spec, Fabric& fabric,
                                            const MessageSurroundings& surroundings);

  const MessageSpec& spec() const { return spec_; }
  const std::string& description() const { return described_.text; }
  std::span<const Stage> stages() const { return stages_; }

  Status begin(std::uint64_t step);
  Status begin(std::uint64_t step, std::span<const std::span<float>> gradients);
  Status bind(std::size_t member, std::span<float> gradient);
  Status encode_member(std::size_t stage, std::size_t member);
  Status run_codec(std::size_t stage);
  Status start(std::size_t stage);
  Status wait(std::size_t stage);
  bool done(std::size_t stage) const;
  Result<Outcome> end();
  void rewind();

  SentBytes promised(std::uint64_t step, std::size_t stage) const;
  void copy_residual(std::size_t member, std::span<float> out) const;
  void take_residual(std::size_t member, std::span<float> out);
  Status give_residual(std::size_t member, std::span<const float> residual);
  bool take_next(std::size_t member, std::span<float> out);
  bool keeps_residual(std::size_t member) const;
  Status add_to_next(std::size_t member, std::span<const float> gradient);
  void scale_residuals(float factor);
  bool has_momentum(std::size_t member) const;
  std::uint64_t summed_workers() const { return described_.summed_workers; }
  void copy_momentum(std::size_t member, std::span<float> out) const;
  Status load_momentum(std::size_t member, std::span<const float> momentum);
  void save(std::size_t member, ByteWriter& out) const;
  Status load(std::size_t member, ByteReader& in);

 private:
  Impl(MessageSpec spec, Fabric& fabric, Described described)
      : spec_(std::move(spec)), fabric_(fabric), described_(std::move(described)) {}

  void find_memories(Memories* memories);
  void make_tables(const MessageSurroundings& surroundings);
  Status make_sites();
  /// The tables for members of these parities.
  Route make_route_for(std::span<const unsigned> parities) const;
  /// By the members' parity. Errors: kInvalidArgument where they differ.
  Status choose_route();
  const Route& route() const { return routes_[route_]; }
  const EncodeTask* first_encode(const Route& route, unsigned site) const;
  Status check_residual(std::size_t member, std::span<const float> residual) const;

  Status check_gradient(std::size_t member, std::span<const float> gradient) const;
  Status check_bound(std::size_t member) const;
  Status check_turn(std::size_t stage, plan::ActionKind first, plan::ActionKind second) const;
  Status decode(const DecodeTask& task);
  void finish_comm(const CommTask& task);
  void add_pending(std::size_t member);
  Status failed(Status status);

  const MessageSpec spec_;
  Fabric& fabric_;
  Described described_;
  std::vector<Stage> stages_;
  std::vector<Route> routes_;  ///< one, or where payload sizes alternate of even and odd steps
  std::size_t route_ = 0;      ///< of step_
  std::optional<Workspace> memory_;
  std::vector<Site> sites_;
  std::vector<std::shared_ptr<TensorMemory>> memories_;  ///< per member

  std::uint64_t step_ = 0;
  bool in_step_ = false;
  bool poisoned_ = false;  ///< the step counts for nothing
  bool ended_ = false;     ///< the last step, well, and nothing was done since
  std::size_t next_ = 0;   ///< the stage whose turn it is
  bool started_ = false;
  Ticket ticket_ = 0;
  std::vector<bool> bound_;    ///< members whose gradient this step has
  std::vector<bool> encoded_;  ///< members whose part of the current Comp is done
};

}  // namespace gradpress::sync
