// An option with its price, and lists of them for exhaustive use.
#pragma once

#include <span>
#include <vector>

#include "plan/cost.h"
#include "plan/strategy.h"
#include "plan/tree.h"

namespace gradpress::plan {

struct Candidate {
  Choice choice;
  Chain chain;
  Loads loads{};
  double total_us = 0.0;  ///< the chain alone, nothing in its way
};

Candidate make_candidate(const Choice& choice, const Chain& chain);

/// One choice priced. Requires: it fits, and the cluster has its costs.
Candidate priced(const Setting& setting, const CommCosts& comm, const Shape& shape,
                 const Choice& choice);

/// Every option of the tree that fits, without those whose tasks equal another's (equal tasks are
/// equal timelines). By total time. `allowed_codecs`: bit i for setting.codecs[i].
std::vector<Candidate> all_candidates(const Setting& setting, const CommCosts& comm,
                                      const OptionTree& tree, const Shape& shape,
                                      std::uint32_t allowed_codecs);

}  // namespace gradpress::plan
