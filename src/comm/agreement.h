// What a rank believes a call to be, and whether two ranks believe the same.
#pragma once

#include <gradpress/group.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradpress::comm {

/// The part of a call on which all ranks must agree. Counts are in elements of `type`:
///   all-reduce, reduce, broadcast           one, the elements
///   reduce-scatter, all-gather, gather      one per rank
///   all-to-all                              what goes to each rank, then what comes from each
///   barrier                                 none
struct CallView {
  CollectiveKind kind = CollectiveKind::kBarrier;
  DataType type = DataType::kBytes;
  unsigned root = 0;  ///< zero where a collective has none
  std::vector<std::size_t> counts = {};
  std::string tensor = {};
};

/// Overwrites `view`, reusing its memory. Requires: check_collective was ok.
void view_of(const Collective& call, unsigned rank, unsigned size, CallView& view);

/// Whether rank_a's view fits rank_b's.
bool agree(const CallView& a, unsigned rank_a, const CallView& b, unsigned rank_b);

/// A number that two ranks' views of their `call`-th call share when they agree, and else, but for
/// one chance in 2^64, do not: messages marked with it never meet between ranks that disagree.
std::uint64_t pair_tag(const CallView& view, unsigned rank, unsigned other, std::uint64_t call);

/// "all-reduce of conv1, 100 float32"; of all-to-all what goes between this rank and `other`.
std::string to_text(const CallView& view, unsigned other);

/// Whether `ranks` name a sub-group of a group of `size` that this rank is in.
/// Errors: kInvalidArgument, as Group::subgroup.
Status check_subgroup(std::span<const unsigned> ranks, unsigned rank, unsigned size);

/// "all-reduce of conv1", or "all-reduce" for a call without a name.
std::string call_name(CollectiveKind kind, std::string_view tensor);

}  // namespace gradpress::comm
