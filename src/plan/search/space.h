// What a search chooses from: candidates per kind of message, and the bound.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/candidates.h"
#include "plan/graph.h"
#include "plan/simulator.h"
#include "plan/strategy.h"

namespace gradpress::plan {

/// Messages whose members are alike share their candidates.
struct MessageClass {
  std::vector<Candidate> candidates;
  std::array<std::uint16_t, kPriceCount> by_price{};  ///< the cheapest candidate at each price
  std::vector<std::uint32_t> messages;                ///< in backward order
  /// A graph per codec that all members may use, and which codec that is.
  std::vector<PricedGraph> graphs;
  std::vector<std::uint8_t> codecs;
  bool several_members = false;
  bool widened = false;
};

/// Requires: what the setting refers to outlives it. Not copyable: candidates are pointed into.
class SearchSpace {
 public:
  /// `allowed_codecs[tensor]`: bit i for setting.codecs[i]; empty allows everything.
  SearchSpace(const Setting& setting, const Restrictions& restrictions,
              std::span<const std::uint32_t> allowed_codecs, const Buckets& buckets);
  SearchSpace(const SearchSpace&) = delete;
  SearchSpace& operator=(const SearchSpace&) = delete;

  const Setting& setting() const { return setting_; }
  const CommCosts& comm() const { return comm_; }
  const Buckets& buckets() const { return buckets_; }
  std::span<MessageClass> classes() { return classes_; }
  MessageClass& class_of(std::uint32_t message) { return classes_[class_of_[message]]; }
  std::uint32_t messages() const { return buckets_.count; }
  /// A message's tensors, ascending.
  std::span<const std::uint32_t> members(std::uint32_t message) const { return members_[message]; }
  bool fused() const { return buckets_.count != setting_.trace.tensors.size(); }

  /// A member's own first Comp under a candidate of its message. us = 0 in messages of one tensor
  /// and where the option begins with communication.
  Lead lead(std::uint32_t tensor, const Candidate& candidate) const;

  /// Adds the cheapest candidates, at each price, of the options that `filter` leaves. Returns
  /// their indices by price; at prices without any, the unfiltered candidate's.
  std::array<std::uint16_t, kPriceCount> add_family(MessageClass& message_class, EdgeFilter filter);
  /// Adds all candidates that no other one dominates. Cost: some 0.2 ms.
  void widen(MessageClass& message_class);
  /// The index of a choice among a message's candidates, added where it is new; none when the
  /// tree or the message's codecs do not have it.
  std::optional<std::uint16_t> index_of(std::uint32_t message, const Choice& choice);

  /// No strategy of this tree with these messages is faster (docs/cost_model.md).
  double bound_us() const;
  /// The same with any messages. Requires: this space has a message for each tensor.
  double fused_bound_us() const;

 private:
  /// Tensors alike: size, shape where it matters, allowed codecs.
  struct Kind {
    std::uint64_t elements;
    std::uint64_t rows;
    std::uint32_t allowed;
    std::vector<PricedGraph> graphs;  ///< per entry of `codecs`
    std::vector<std::uint8_t> codecs;
  };
  template <class Least>
  std::vector<Loads> least_by_tensor(Least least) const;
  std::uint32_t kind_of(std::uint32_t tensor, std::uint32_t allowed, bool shapes_matter);
  std::uint16_t add_path(MessageClass& message_class, std::size_t graph, const Path& path);
  static std::uint16_t add_candidate(MessageClass& message_class, const Candidate& candidate);

  Setting setting_;
  CommCosts comm_;
  Buckets buckets_;
  std::vector<OptionGraph> graphs_;  ///< per codec, and the raw one
  codec::Spec none_;
  std::vector<Kind> kinds_;
  std::vector<std::vector<std::uint32_t>> members_;
  /// What a tensor's first Comp takes, by codec, place and tensor; empty without buckets.
  std::vector<double> lead_us_;
  std::vector<MessageClass> classes_;
  std::vector<std::uint32_t> class_of_;
};

}  // namespace gradpress::plan
