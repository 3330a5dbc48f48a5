// Espresso's published algorithm (EuroSys 2023), in the whole tree.
//
//   1. Bubbles: tensors sent before a gap in which the links wait for backward gain nothing from a
//      codec and leave the candidates for good; looked for again after every decision.
//   2. Order: larger tensors first; among equals those whose gradient is computed later.
//   3. Choice: every device option with all others fixed; the shortest iteration wins. In a tree
//      without the device, every host option.
//   4. Offload: encoded tensors grouped by (size, option); of a group the q earliest go to the
//      host, and only the counts are searched.
//
// What the paper leaves open is read in its favour (docs/strategies.md has the readings and what
// each is worth): the start is tried both as hierarchical all-reduce and as each tensor's quickest
// raw option; among options of equal iteration the quickest wins; where the product of the counts
// is too large to enumerate, they are searched one group at a time until nothing improves.
#include "plan/search/espresso.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <tuple>

#include "plan/search/isolated.h"
#include "plan/simulator.h"

namespace gradpress::plan {

namespace {

constexpr std::uint64_t kMostCombinations = 4096;
/// Iterations that differ by less are equal.
constexpr double kEqualUs = 1e-6;

/// What "no compression" sends before the first decision.
enum class Start : std::uint8_t { kHierarchical, kQuickestRaw };

/// What each tensor chooses from, the quickest option first. Tensors alike share a list.
class Alternatives {
 public:
  Alternatives(const Request& request, const CommCosts& comm) {
    Restrictions one_place = request.tree;
    one_place.host = !request.tree.device;
    const OptionTree tree(one_place);
    const auto& tensors = request.setting.trace.tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Shape& shape = tensors[i].shape;
      const Key key{shape.elements(), shape.is_matrix() ? shape.rows() : 0, request.allowed(i)};
      auto [at, is_new] = lists_.try_emplace(key);
      if (is_new) {
        at->second = all_candidates(request.setting, comm, tree, shape, request.allowed(i));
      }
      of_tensor_.push_back(&at->second);
    }
  }
  Alternatives(const Alternatives&) = delete;
  Alternatives& operator=(const Alternatives&) = delete;

  const std::vector<Candidate>& of(std::size_t tensor) const { return *of_tensor_[tensor]; }

 private:
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>;
  std::map<Key, std::vector<Candidate>> lists_;
  std::vector<const std::vector<Candidate>*> of_tensor_;
};

class Espresso {
 public:
  Espresso(const Request& request, const CommCosts& comm, const Alternatives& alternatives,
           Start start)
      : request_(request),
        comm_(comm),
        alternatives_(alternatives),
        tensors_(request.setting.trace.tensors),
        simulator_(request.setting.trace, Buckets::singles(tensors_.size())) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      // The first raw one is the quickest.
      const auto& list = alternatives.of(i);
      const auto quickest = std::ranges::find_if(
          list, [](const Candidate& candidate) { return candidate.choice.option.is_raw(); });
      current_.push_back(
          start == Start::kQuickestRaw && quickest != list.end()
              ? *quickest
              : priced(request.setting, comm, tensors_[i].shape, {.option = raw_hierarchical()}));
    }
    for (const Candidate& candidate : current_) chains_.push_back(&candidate.chain);
    for (const Candidate& candidate : current_) change(candidate.loads, 1.0);
    value_ = simulator_.run(work());
  }

  double value_us() const { return value_; }
  const EspressoReport& report() const { return report_; }

  Strategy run() {
    choose();
    report_.offload_tensors = static_cast<std::size_t>(std::ranges::count_if(
        current_, [](const Candidate& candidate) { return !candidate.choice.option.is_raw(); }));
    if (request_.tree.device && request_.tree.host) offload();
    Strategy strategy{.choices = {}, .buckets = Buckets::singles(tensors_.size())};
    for (const Candidate& candidate : current_) strategy.choices.push_back(candidate.choice);
    return strategy;
  }

 private:
  Work work() const { return {.chains = chains_, .leads = {}, .loads = loads_}; }
  void change(const Loads& loads, double sign) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) loads_[lane] += sign * loads[lane];
  }
  /// Whether the lanes' loads alone rule out an end below `limit`.
  bool hopeless(double limit) const {
    const double first = simulator_.ready_us().front();
    return loads_[0] + simulator_.backward_us() >= limit + kEqualUs ||
           std::max({loads_[1], loads_[2], loads_[3]}) + first >= limit + kEqualUs;
  }
  void set(std::size_t tensor, const Candidate& candidate) {
    change(current_[tensor].loads, -1.0);
    change(candidate.loads, 1.0);
    current_[tensor] = candidate;
  }

  /// Tensors all of whose communication ends before a moment at which the links wait for backward:
  /// none is busy, and what comes next is the beginning of a tensor's journey. A gap on one link
  /// alone is no bubble (what the other carries may close it), nor is a tensor's wait for its own
  /// codec in the middle of its journey (it would begin earlier if the others were shorter).
  void remove_before_bubbles(std::vector<bool>& out) {
    std::vector<Span> sends;
    std::ranges::copy_if(simulator_.spans(), std::back_inserter(sends), [](const Span& span) {
      return span.lane == Lane::kIntra || span.lane == Lane::kInter;
    });
    std::ranges::sort(sends, {}, &Span::start_us);
    double last_bubble = -1.0;
    double busy_until = -1.0;
    std::vector<double> sent(tensors_.size(), 0.0);
    for (const Span& span : sends) {
      const bool begins = sent[span.message] == 0.0;
      if (busy_until >= 0.0 && span.start_us > busy_until && begins) last_bubble = busy_until;
      busy_until = std::max(busy_until, span.end_us);
      sent[span.message] = std::max(sent[span.message], span.end_us);
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (sent[i] <= last_bubble) out[i] = true;
    }
  }

  void choose() {
    std::vector<std::size_t> order(tensors_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, [this](std::size_t a, std::size_t b) {
      if (tensors_[a].elements != tensors_[b].elements) {
        return tensors_[a].elements > tensors_[b].elements;
      }
      return a > b;
    });
    std::vector<bool> out(tensors_.size(), false);
    remove_before_bubbles(out);
    for (const std::size_t tensor : order) {
      if (out[tensor]) continue;
      const Candidate* best = nullptr;
      const Candidate original = current_[tensor];
      double best_value = value_;
      for (const Candidate& candidate : alternatives_.of(tensor)) {
        // No tensor ends before its own chain.
        if (simulator_.ready_us()[tensor] + candidate.total_us >= best_value + kEqualUs) break;
        change(original.loads, -1.0);
        change(candidate.loads, 1.0);
        chains_[tensor] = &candidate.chain;
        const double value = hopeless(best_value + kEqualUs)
                                 ? Simulator::kNever
                                 : simulator_.probe(work(), tensor, best_value + kEqualUs);
        change(candidate.loads, -1.0);
        change(original.loads, 1.0);
        const double quickest = best == nullptr ? original.total_us : best->total_us;
        const bool shorter = value <= best_value - kEqualUs;
        const bool equal = value < best_value + kEqualUs;
        if (!shorter && !(equal && candidate.total_us < quickest)) continue;
        best_value = std::min(value, best_value);
        best = &candidate;
      }
      chains_[tensor] = &current_[tensor].chain;
      if (best == nullptr) continue;
      set(tensor, *best);
      value_ = simulator_.rerun(work(), tensor);
      remove_before_bubbles(out);
    }
  }

  struct Group {
    std::vector<std::size_t> tensors;  ///< by backward order
    Candidate device;
    Candidate host;
    std::size_t offloaded = 0;
  };

  void apply(Group& group, std::size_t count) {
    for (std::size_t i = 0; i < group.tensors.size(); ++i) {
      const bool to_host = i < count;
      if (to_host == (i < group.offloaded)) continue;
      set(group.tensors[i], to_host ? group.host : group.device);
    }
    group.offloaded = count;
  }

  void offload() {
    std::vector<Group> groups;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (current_[i].choice.option.is_raw()) continue;
      auto group = std::ranges::find_if(groups, [&](const Group& known) {
        return tensors_[known.tensors.front()].shape == tensors_[i].shape &&
               known.device.choice == current_[i].choice;
      });
      if (group == groups.end()) {
        Choice host = current_[i].choice;
        host.option = host.option.moved_to(Place::kHost);
        groups.push_back({.tensors = {},
                          .device = current_[i],
                          .host = priced(request_.setting, comm_, tensors_[i].shape, host)});
        group = groups.end() - 1;
      }
      group->tensors.push_back(i);
    }
    std::uint64_t combinations = 1;
    for (const Group& group : groups) {
      combinations = std::min(combinations * (group.tensors.size() + 1), kMostCombinations + 1);
    }
    if (combinations <= kMostCombinations) {
      enumerate(groups);
    } else {
      descend(groups);
    }
  }

  void enumerate(std::vector<Group>& groups) {
    std::vector<std::size_t> best(groups.size(), 0);
    for (;;) {
      std::size_t digit = 0;
      while (digit < groups.size() && groups[digit].offloaded == groups[digit].tensors.size()) {
        apply(groups[digit++], 0);
      }
      if (digit == groups.size()) break;
      apply(groups[digit], groups[digit].offloaded + 1);
      const double value = simulator_.probe(work(), 0, value_);
      if (value >= value_) continue;
      value_ = value;
      for (std::size_t i = 0; i < groups.size(); ++i) best[i] = groups[i].offloaded;
    }
    for (std::size_t i = 0; i < groups.size(); ++i) apply(groups[i], best[i]);
  }

  void descend(std::vector<Group>& groups) {
    for (bool improved = true; improved;) {
      improved = false;
      for (Group& group : groups) {
        const std::size_t before = group.offloaded;
        std::size_t best = before;
        for (std::size_t count = 0; count <= group.tensors.size(); ++count) {
          apply(group, count);
          const double value = simulator_.probe(work(), 0, value_);
          if (value >= value_) continue;
          value_ = value;
          best = count;
        }
        apply(group, best);
        improved = improved || best != before;
      }
    }
  }

  const Request& request_;
  const CommCosts& comm_;
  const Alternatives& alternatives_;
  const std::vector<Tensor>& tensors_;
  Simulator simulator_;
  std::vector<Candidate> current_;
  std::vector<const Chain*> chains_;
  Loads loads_{};
  double value_ = 0.0;
  EspressoReport report_;
};

}  // namespace

Result<Strategy> search_espresso(const Request& request, EspressoReport* report) {
  if (const Status status = check_costs(request); !status) return tl::unexpected(status);
  const CommCosts comm(request.setting.cluster);
  const Alternatives alternatives(request, comm);
  Espresso hierarchical(request, comm, alternatives, Start::kHierarchical);
  Strategy best = hierarchical.run();
  Espresso quickest(request, comm, alternatives, Start::kQuickestRaw);
  Strategy other = quickest.run();
  const bool is_other = quickest.value_us() < hierarchical.value_us();
  if (report != nullptr) *report = is_other ? quickest.report() : hierarchical.report();
  return is_other ? other : best;
}

Result<Strategy> plan_espresso(const Request& request) { return search_espresso(request, nullptr); }

}  // namespace gradpress::plan
