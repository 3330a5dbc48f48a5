// The exact optimum: branch and bound over every option of every tensor.
//
// Tensors are fixed one after the other, the heaviest first. A partial choice is given up when no
// completion can beat the best strategy known: each lane must carry the fixed loads and at least
// the others' least, from their readiness on; the device also its backward; no tensor ends before
// its own chain. Nothing is pruned by dominance: a slower option can win by an accident of order.
#include <algorithm>
#include <numeric>
#include <string>

#include "plan/search/best.h"
#include "plan/search/request.h"
#include "plan/simulator.h"

namespace gradpress::plan {

namespace {

/// Partial strategies to look at before the space counts as too large: a few seconds.
constexpr std::uint64_t kMostNodes = 20'000'000;

class Exact {
 public:
  Exact(const Request& request, std::uint64_t most_nodes)
      : most_nodes_(most_nodes),
        tensors_(request.setting.trace.tensors),
        simulator_(request.setting.trace, Buckets::singles(tensors_.size())),
        chains_(tensors_.size(), nullptr),
        chosen_(tensors_.size(), nullptr) {
    const CommCosts comm(request.setting.cluster);
    const OptionTree tree(request.tree);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      options_.push_back(
          all_candidates(request.setting, comm, tree, tensors_[i].shape, request.allowed(i)));
      Loads least = options_[i].empty() ? Loads{} : options_[i].front().loads;
      for (const Candidate& candidate : options_[i]) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
          least[lane] = std::min(least[lane], candidate.loads[lane]);
        }
      }
      loads_.push_back(least);
      space_ *= static_cast<double>(options_[i].size());
    }
    order_.resize(tensors_.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::ranges::sort(order_, [this](std::size_t a, std::size_t b) {
      return std::pair(tensors_[a].elements, a) > std::pair(tensors_[b].elements, b);
    });
  }

  double space() const { return space_; }
  std::uint64_t nodes() const { return nodes_; }

  /// False when the nodes were used up.
  bool run(double incumbent_us) {
    best_us_ = incumbent_us;
    return descend(0);
  }
  /// Empty when nothing was better than the incumbent.
  const std::vector<Choice>& best() const { return best_; }

 private:
  /// The least end any completion can have.
  double bound() const {
    Loads later{};
    double bound = simulator_.backward_us();
    const auto ready = simulator_.ready_us();
    double device = 0.0;
    for (std::size_t i = tensors_.size(); i-- > 0;) {
      for (std::size_t lane = 1; lane < kLanes; ++lane) {
        later[lane] += loads_[i][lane];
        if (later[lane] > 0.0) bound = std::max(bound, ready[i] + later[lane]);
      }
      device += loads_[i][0];
      if (chosen_[i] != nullptr) bound = std::max(bound, ready[i] + chosen_[i]->total_us);
    }
    return std::max(bound, simulator_.backward_us() + device);
  }

  bool descend(std::size_t depth) {
    if (depth == order_.size()) {
      Loads loads{};
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        for (std::size_t lane = 0; lane < kLanes; ++lane) loads[lane] += loads_[i][lane];
      }
      const double value =
          simulator_.probe({.chains = chains_, .leads = {}, .loads = loads}, 0, best_us_);
      if (value >= best_us_ - 1e-6) return true;
      best_us_ = value;
      best_.clear();
      for (const Candidate* const candidate : chosen_) best_.push_back(candidate->choice);
      return true;
    }
    const std::size_t tensor = order_[depth];
    const Loads least = loads_[tensor];
    bool finished = true;
    for (const Candidate& candidate : options_[tensor]) {
      if (++nodes_ > most_nodes_) {
        finished = false;
        break;
      }
      chosen_[tensor] = &candidate;
      chains_[tensor] = &candidate.chain;
      loads_[tensor] = candidate.loads;
      if (bound() < best_us_) finished = descend(depth + 1);
      if (!finished) break;
    }
    chosen_[tensor] = nullptr;
    loads_[tensor] = least;
    return finished;
  }

  std::uint64_t most_nodes_;
  const std::vector<Tensor>& tensors_;
  Simulator simulator_;
  std::vector<std::vector<Candidate>> options_;
  std::vector<Loads> loads_;  ///< fixed, or the least
  std::vector<std::size_t> order_;
  std::vector<const Chain*> chains_;
  std::vector<const Candidate*> chosen_;
  double space_ = 1.0;
  std::uint64_t nodes_ = 0;
  double best_us_ = 0.0;
  std::vector<Choice> best_;
};

}  // namespace

ExactResult search_exact(const Request& request, double incumbent_us, std::uint64_t most_nodes) {
  Exact exact(request, most_nodes);
  ExactResult result;
  result.finished = exact.run(incumbent_us - request.setting.trace.forward_us);
  result.choices = exact.best();
  result.strategies = exact.space();
  result.nodes = exact.nodes();
  return result;
}

Result<Strategy> plan_optimal(const Request& request) {
  SearchReport report;
  const Buckets singles = Buckets::singles(request.setting.trace.tensors.size());
  auto incumbent = search_best(request, singles, &report);
  if (!incumbent) return incumbent;
  const ExactResult exact = search_exact(request, report.value_us, kMostNodes);
  if (!exact.finished) {
    return fail(Code::kInvalidArgument, "optimal: the space of ", exact.strategies,
                " strategies is too large: ", exact.nodes,
                " partial ones were looked at without an end; cut the trace or restrict the tree, "
                "or use best (",
                report.value_us, " µs, no strategy is below ", report.floor_us, " µs)");
  }
  if (!exact.choices.empty()) incumbent->choices = exact.choices;
  return incumbent;
}

}  // namespace gradpress::plan
