// The decision tree, enumerated: which options there are, under which restrictions.
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/option.h"

namespace gradpress::plan {

/// What a user leaves out of the tree. The default is the whole tree of the paper: 4341 options.
struct Restrictions {
  bool device = true;
  bool host = true;
  std::uint8_t forbidden_phases = 0;       ///< bit Phase
  std::uint8_t forbidden_collectives = 0;  ///< bit Collective
  unsigned max_encodes = Option::kMaxActions;
  bool extended = false;  ///< adds payloads that collectives sum, and the paths of two rounds
  /// Keeps only the options it accepts; none keeps all. For named sub-trees.
  bool (*accepts)(const Option&) = nullptr;
};

/// Forbids what a word names: a place (device, host), a link (intra: the hierarchical phases inside
/// a machine; inter: everything that crosses machines, flat included), a phase, or a collective.
/// Errors: kInvalidArgument, listing the words.
Status forbid(Restrictions& restrictions, std::string_view word);

/// The tree as a prefix tree in preorder: a walk computes what paths share once, and skips what it
/// has pruned. Immutable; any number of threads.
class OptionTree {
 public:
  struct Node {
    Action action;
    std::uint32_t parent;  ///< kRoot for first actions
    std::uint32_t after;   ///< the first node that is not below this one
    bool is_option;        ///< whether a path ends here
  };
  static constexpr std::uint32_t kRoot = 0xFFFFFFFF;

  /// Cost: about 0.2 ms for the whole tree.
  explicit OptionTree(const Restrictions& restrictions);

  std::span<const Node> nodes() const { return nodes_; }
  /// Number of options.
  std::size_t size() const { return size_; }
  /// The option that ends at `node`. Requires: nodes()[node].is_option.
  Option option_at(std::uint32_t node) const;
  /// All of them, in the tree's order.
  std::vector<Option> options() const;

 private:
  std::vector<Node> nodes_;
  std::size_t size_ = 0;
};

/// How many paths each sub-tree has under the restrictions (each counted from its own root, after
/// sharded first steps). `accepts` is not asked: it judges whole options.
struct SubtreeCounts {
  std::uint64_t t1 = 0, t2 = 0, t3 = 0, t4 = 0, t5 = 0, flat = 0, hier = 0, rounds = 0;
};
SubtreeCounts count_subtrees(const Restrictions& restrictions);

}  // namespace gradpress::plan
