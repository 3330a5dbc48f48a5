// Cheapest paths at many prices, then a walk along the critical path.
// docs/decisions/0011-planner-search.md says why, and what was measured.
#include "plan/search/best.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "plan/search/isolated.h"
#include "plan/search/refine.h"
#include "plan/search/space.h"
#include "plan/search/walk.h"
#include "plan/timeline.h"

namespace gradpress::plan {

namespace {

using Picks = std::vector<std::uint16_t>;

/// Simulated tasks per search: some 30 ns each, what surrounds them included.
constexpr std::uint64_t kTasks = 270'000;
constexpr std::uint64_t kTasksPerTensor = 1'000;  ///< for models of very many tensors
constexpr std::size_t kStarts = 12;
constexpr std::size_t kDeepened = 2;
constexpr std::size_t kDeepenedFew = 3;
constexpr std::size_t kWidened = 6;  ///< classes that get every undominated candidate
/// Starting points worse than the best by more are not refined.
constexpr double kStartRange = 1.15;
/// Where not all prices are worth a simulation, every so manieth is: an odd step meets all rows of
/// the list.
constexpr std::size_t kStride = 5;
/// Up to here a simulation costs next to nothing, and everything is tried.
constexpr std::size_t kFewMessages = 64;
constexpr std::size_t kPairMessages = 8;
/// Up to here single moves meet every candidate often enough for annealing to beat a walk.
constexpr std::size_t kAnnealMessages = 16;
/// So few messages are planned exactly, in a second at most.
constexpr std::size_t kExactMessages = 4;
constexpr std::uint64_t kExactNodes = 20'000'000;
/// Up to here the rivals are searched too: all of them together cost about as much as the search.
constexpr std::size_t kRivalMessages = 12;
/// The shares of the budget then: of the whole tree, and of each sub-tree.
constexpr double kWholeTreeEffort = 0.25;
constexpr double kSubTreeEffort = 0.05;
constexpr double kCloseEnough = 1.0 + 1e-4;

/// Sub-trees whose own cheapest strategies are good places to begin: what is cheapest at one price
/// for all tensors in the whole tree is often a mixture that fits nowhere.
constexpr std::array<EdgeFilter, 5> kFamilies = {
    // Payloads between machines only, by all-to-all.
    [](const Action& action) {
      return !action.encoded || (action.phase == Phase::kInter && action.step != Step::kWhole &&
                                 action.collective != Collective::kGather);
    },
    // The same by all-gather.
    [](const Action& action) {
      return !action.encoded || (action.phase == Phase::kInter && action.step == Step::kWhole);
    },
    // Payloads inside machines too, and nothing scattered raw there.
    [](const Action& action) {
      return action.encoded || action.phase != Phase::kIntra1 ||
             action.collective != Collective::kReduceScatter;
    },
    [](const Action& action) {
      return action.kind == ActionKind::kComm || action.place == Place::kDevice;
    },
    [](const Action& action) {
      return action.kind == ActionKind::kComm || action.place == Place::kHost;
    },
};

class BestSearch {
 public:
  BestSearch(const Request& request, const Buckets& buckets, double effort)
      : request_(request),
        space_(request.setting, request.tree, request.allowed_codecs, buckets),
        walk_(space_) {
    const auto tensors = static_cast<std::uint64_t>(request.setting.trace.tensors.size());
    stride_ = buckets.count <= kFewMessages ? 1 : kStride;
    budget_ = static_cast<std::uint64_t>(
        effort * static_cast<double>(std::max(kTasks, kTasksPerTensor * tensors)));
    end_ = budget_;
    bound_ = space_.bound_us() - request.setting.trace.forward_us;
    floor_ = std::max(bound_, longest_alone());
  }

  Strategy run() {
    find_starts();
    if (!finish_quickly()) {
      find_family_starts();
      refine_starts();
      if (space_.messages() <= kAnnealMessages) {
        anneal_optimum();
      } else {
        deepen_optima();
      }
    }
    walk_.restart(optima_.front().picks);
    return walk_.strategy();
  }

  /// Begins again at a strategy of the tree, if that is better.
  Strategy improve_on(const Strategy& strategy) {
    Picks picks(space_.messages());
    for (std::uint32_t message = 0; message < space_.messages(); ++message) {
      const auto index = space_.index_of(message, strategy.choices[message]);
      if (!index) return walk_.strategy();
      picks[message] = *index;
    }
    const Picks before(walk_.picks().begin(), walk_.picks().end());
    const double value = walk_.value_us();
    walk_.restart(picks);
    if (walk_.value_us() >= value) {
      walk_.restart(before);
      return walk_.strategy();
    }
    budget_ += budget_ / 4;
    end_ = budget_ + walk_.tasks_run();
    (void)step(budget_ / 8);
    return walk_.strategy();
  }

  SearchReport report() const {
    const double forward = request_.setting.trace.forward_us;
    return {.value_us = walk_.value_us() + forward,
            .bound_us = bound_ + forward,
            .floor_us = floor_ + forward,
            .tasks_run = walk_.tasks_run()};
  }

 private:
  struct Start {
    double value;
    std::size_t family;
    Picks picks;
    bool refined = false;
  };
  /// What a start became.
  struct Optimum {
    double value;
    Picks picks;
    std::size_t family = 0;
    bool settled = false;  ///< no move helps
  };

  bool done() const {
    return walk_.value_us() <= floor_ * kCloseEnough || walk_.tasks_run() >= end_;
  }
  /// Whether a local optimum was reached.
  bool step(std::uint64_t tasks, std::size_t family = 0) {
    if (done()) return false;
    const bool inside = family > 0 && family <= inside_.size();
    return refine(walk_, {.tasks = std::min(tasks, end_ - walk_.tasks_run()),
                          .floor_us = floor_,
                          .only = inside ? &inside_[family - 1] : nullptr});
  }
  void keep_optimum() {
    optima_.push_back({walk_.value_us(), Picks(walk_.picks().begin(), walk_.picks().end())});
  }

  std::uint64_t start_budget() const { return budget_ / (stride_ == 1 ? 40 : 20); }

  /// No message ends before its readiness and its quickest chain.
  double longest_alone() {
    double ready = 0.0;
    double longest = 0.0;
    const auto& tensors = request_.setting.trace.tensors;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      ready += tensors[i].ready_gap_us;
      const std::uint32_t message = space_.buckets().of_tensor[i];
      if (space_.members(message).back() != i) continue;
      double least = Simulator::kNever;
      for (const Candidate& candidate : space_.class_of(message).candidates) {
        // Members encode while others are still being computed: only what follows is certain.
        double after = 0.0;
        for (std::size_t task = 0; task < candidate.chain.count; ++task) {
          after += candidate.chain.us[task];
        }
        least = std::min(least, after);
      }
      longest = std::max(longest, ready + least);
    }
    return longest;
  }

  void consider(const Picks& picks, std::size_t family) {
    for (const Start& start : starts_) {
      if (start.picks == picks) return;
    }
    const double limit = starts_.empty() ? Simulator::kNever : kStartRange * best_start_;
    const double value = walk_.value_of(picks, limit);
    if (value == Simulator::kNever) return;
    best_start_ = std::min(best_start_, value);
    starts_.push_back({value, family, picks});
  }

  using ByPrice = std::vector<std::array<std::uint16_t, kPriceCount>>;  ///< per class

  /// One strategy per price.
  void sweep(const ByPrice& by_price, std::size_t family, std::size_t stride) {
    const auto classes = space_.classes();
    Picks picks(space_.messages());
    for (std::size_t price = 0; price < kPriceCount; price += stride) {
      for (std::size_t i = 0; i < classes.size(); ++i) {
        for (const std::uint32_t message : classes[i].messages) {
          picks[message] = by_price[i][price];
        }
      }
      consider(picks, family);
    }
  }

  ByPrice family(EdgeFilter filter) {
    ByPrice result;
    for (MessageClass& message_class : space_.classes()) {
      result.push_back(filter == nullptr ? message_class.by_price
                                         : space_.add_family(message_class, filter));
    }
    return result;
  }

  void find_starts() {
    add_baselines();
    const ByPrice whole = family(nullptr);
    Picks picks(space_.messages());
    walk_.restart(picks);
    best_start_ = walk_.value_us();
    sweep(whole, 0, 1);
    for (const Picks& baseline : baselines_) consider(baseline, kFamilies.size() + 1);
    std::ranges::stable_sort(starts_, {}, &Start::value);
  }

  /// Most models end at the floor from the first start.
  bool finish_quickly() {
    walk_.restart(starts_.front().picks);
    (void)step(start_budget());
    keep_optimum();
    starts_.front().refined = true;
    return done();
  }

  void find_family_starts() {
    if (request_.tree.accepts != nullptr) return;
    Picks picks;
    std::vector<ByPrice> families;
    families.reserve(std::size(kFamilies));
    for (const EdgeFilter filter : kFamilies) families.push_back(family(filter));
    // Candidates were added: the walk points at the old ones.
    picks.assign(walk_.picks().begin(), walk_.picks().end());
    walk_.restart(picks);
    for (std::size_t i = 0; i < families.size(); ++i) sweep(families[i], i + 1, stride_);
    for (const ByPrice& by_price : families) {
      auto& inside = inside_.emplace_back();
      for (const auto& of_class : by_price) {
        auto& indices = inside.emplace_back(of_class.begin(), of_class.end());
        std::ranges::sort(indices);
        indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
      }
    }
  }

  void add_baselines() {
    if (space_.fused() || request_.tree.accepts != nullptr) return;
    for (const auto plan : {plan_none, plan_hitopk, plan_hipress, plan_byteps_compress}) {
      const auto strategy = plan(request_);
      if (!strategy) continue;
      Picks picks(space_.messages());
      bool inside = true;
      for (const MessageClass& message_class : space_.classes()) {
        // These strategies treat equal tensors alike: one look per class.
        const std::uint32_t first = message_class.messages.front();
        const auto index = space_.index_of(first, strategy->choices[first]);
        inside = inside && index.has_value();
        if (!inside) break;
        for (const std::uint32_t message : message_class.messages) picks[message] = *index;
      }
      if (inside) baselines_.push_back(std::move(picks));
    }
  }

  /// The best start of every family, and the next best ones.
  std::vector<const Start*> chosen_starts() {
    std::ranges::stable_sort(starts_, {}, &Start::value);
    std::vector<const Start*> chosen;
    std::vector<const Start*> others;
    std::vector<bool> seen(kFamilies.size() + 2, false);
    const std::size_t starts = stride_ == 1 ? 3 * kStarts : kStarts;
    for (const Start& start : starts_) {
      (seen[start.family] ? others : chosen).push_back(&start);
      seen[start.family] = true;
    }
    for (std::size_t i = 0; i < others.size() && chosen.size() < starts; ++i) {
      chosen.push_back(others[i]);
    }
    return chosen;
  }

  /// Halving: all starts get a little, the better half of them twice as much, and so on. Each stays
  /// in its family, where a walk comes further for the same budget; deepening leaves it.
  void refine_starts() {
    for (const Start* const start : chosen_starts()) {
      if (!start->refined) optima_.push_back({start->value, start->picks, start->family});
    }
    const std::size_t wanted = stride_ == 1 ? kDeepenedFew : kDeepened;
    std::uint64_t rounds = 0;
    for (std::size_t left = optima_.size(); left > wanted; left = (left + 1) / 2) ++rounds;
    const std::uint64_t spent = walk_.tasks_run();
    for (std::uint64_t round = 0; round < rounds; ++round) {
      const std::uint64_t share = (budget_ / 5 * 2 - std::min(budget_ / 5 * 2, spent)) / rounds;
      for (Optimum& optimum : optima_) {
        if (optimum.settled) continue;
        walk_.restart(optimum.picks);
        optimum.settled = step(share / optima_.size(), optimum.family);
        optimum.value = walk_.value_us();
        optimum.picks.assign(walk_.picks().begin(), walk_.picks().end());
        if (!done()) continue;
        std::ranges::stable_sort(optima_, {}, &Optimum::value);
        return;
      }
      std::ranges::stable_sort(optima_, {}, &Optimum::value);
      const std::size_t kept = std::max(std::min(wanted, optima_.size()), (optima_.size() + 1) / 2);
      std::move(optima_.begin() + static_cast<std::ptrdiff_t>(kept), optima_.end(),
                std::back_inserter(reserve_));
      optima_.resize(kept);
    }
  }

  /// The best local optimum is not always the one from which the moves below lead furthest: a few
  /// are taken on, each with an equal share of what is left of the budget.
  void deepen_optima() {
    std::ranges::stable_sort(optima_, {}, &Optimum::value);
    const std::size_t count = std::min(optima_.size(), stride_ == 1 ? kDeepenedFew : kDeepened);
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0 && optima_[i].value == optima_[i - 1].value) continue;
      end_ = walk_.tasks_run() + (budget_ - std::min(budget_, walk_.tasks_run())) / (count - i);
      walk_.restart(optima_[i].picks);
      deepen();
      keep_optimum();
      if (walk_.value_us() <= floor_ * kCloseEnough) break;
    }
    // What is left of the budget goes to those that halving put aside.
    end_ = budget_;
    std::ranges::stable_sort(reserve_, {}, &Optimum::value);
    for (const Optimum& optimum : reserve_) {
      if (done()) break;
      walk_.restart(optimum.picks);
      (void)step(budget_ / 8);
      deepen();
      keep_optimum();
    }
    std::ranges::stable_sort(optima_, {}, &Optimum::value);
  }

  void anneal_optimum() {
    end_ = budget_;
    std::ranges::stable_sort(optima_, {}, &Optimum::value);
    walk_.restart(optima_.front().picks);
    if (done()) return;
    widen();
    const std::uint64_t left = budget_ - std::min(budget_, walk_.tasks_run());
    anneal(walk_, {.tasks = left / 10 * 8, .floor_us = floor_});
    (void)step(left / 10);
    (void)refine_everywhere(walk_, {.tasks = left / 10, .floor_us = floor_});
    keep_optimum();
    std::ranges::stable_sort(optima_, {}, &Optimum::value);
  }

  void deepen() {
    for (int round = 0; round < 2 && !done(); ++round) {
      const double before = walk_.value_us();
      change_ends();
      (void)step(budget_ / 8);
      widen();
      (void)step(budget_ / 4);
      if (stride_ == 1 && !done()) {
        (void)refine_everywhere(walk_, {.tasks = end_ - walk_.tasks_run(), .floor_us = floor_});
      }
      while (stride_ == 1 && !done() &&
             refine_by_pairs(walk_, {.tasks = end_ - walk_.tasks_run()})) {
        (void)step(budget_ / 8);
      }
      if (space_.messages() <= kPairMessages) change_pairs();
      if (walk_.value_us() >= before) break;
    }
  }

  /// Early tensors are hidden by backward and late ones by nothing: another price for the messages
  /// before or after a point in time.
  void change_ends() {
    const std::uint32_t cuts = stride_ == 1 ? 8 : 4;
    const std::uint32_t messages = space_.messages();
    Picks best;
    for (std::uint32_t part = 1; part < cuts; ++part) {
      const std::uint32_t cut = messages * part / cuts;
      for (const bool late : {true, false}) {
        double value = walk_.value_us();
        best.clear();
        Picks last;
        for (std::size_t price = 0; price < kPriceCount && !done(); price += stride_) {
          Picks picks(walk_.picks().begin(), walk_.picks().end());
          for (std::uint32_t message = late ? cut : 0; message < (late ? messages : cut);
               ++message) {
            picks[message] = space_.class_of(message).by_price[price];
          }
          if (picks == last) continue;
          last = picks;
          const double now = walk_.value_of(picks, value - 1e-3);
          if (now == Simulator::kNever) continue;
          value = now;
          best = picks;
        }
        if (!best.empty()) walk_.restart(best);
      }
    }
  }

  /// With a handful of messages every two of them can be changed together.
  void change_pairs() {
    for (std::uint32_t a = 0; a < space_.messages(); ++a) {
      for (std::uint32_t b = a + 1; b < space_.messages(); ++b) {
        const std::size_t of_a = space_.class_of(a).candidates.size();
        const std::size_t of_b = space_.class_of(b).candidates.size();
        for (std::size_t i = 0; i < of_a; ++i) {
          for (std::size_t j = 0; j < of_b && !done(); ++j) {
            const std::array<Walk::Move, 2> moves = {
                {{a, static_cast<std::uint16_t>(i)}, {b, static_cast<std::uint16_t>(j)}}};
            (void)walk_.improve(moves);
          }
        }
      }
    }
  }

  void widen() {
    if (done()) return;
    const Picks picks(walk_.picks().begin(), walk_.picks().end());
    // Only where it can matter: the classes that keep the lanes busiest.
    std::vector<std::pair<double, std::size_t>> busy;
    const auto classes = space_.classes();
    for (std::size_t i = 0; i < classes.size(); ++i) {
      double sum = 0.0;
      for (const std::uint32_t message : classes[i].messages) {
        sum += classes[i].candidates[picks[message]].total_us;
      }
      busy.emplace_back(-sum, i);
    }
    std::ranges::sort(busy);
    busy.resize(
        std::min(busy.size(), space_.messages() <= kAnnealMessages ? kAnnealMessages : kWidened));
    for (const auto& [sum, index] : busy) space_.widen(classes[index]);
    walk_.restart(picks);
  }

  const Request& request_;
  SearchSpace space_;
  Walk walk_;
  std::uint64_t budget_ = 0;
  std::uint64_t end_ = 0;  ///< of the present part of the budget
  std::size_t stride_ = 1;
  double bound_ = 0.0;
  double floor_ = 0.0;
  std::vector<Start> starts_;
  /// Per family of kFamilies and class, its candidates.
  std::vector<std::vector<std::vector<std::uint16_t>>> inside_;
  std::vector<Picks> baselines_;
  double best_start_ = 0.0;
  std::vector<Optimum> optima_;
  std::vector<Optimum> reserve_;
};

}  // namespace

namespace {

/// The exact search that ends the planning of a handful of messages.
void finish_exactly(const Request& request, Strategy& strategy, SearchReport& report) {
  const std::size_t messages = strategy.choices.size();
  if (messages > kExactMessages || report.value_us <= report.floor_us * kCloseEnough) return;
  const ExactResult exact = search_exact(request, report.value_us, kExactNodes);
  if (exact.choices.empty()) return;
  strategy.choices = exact.choices;
  report.value_us = predict_us(request.setting, strategy);
}

/// The other strategies that search. Those that do not are among the starts.
std::vector<Strategy> rivals(const Request& request) {
  std::vector<Strategy> found;
  const auto add = [&](Result<Strategy> strategy) {
    if (strategy) found.push_back(std::move(*strategy));
  };
  for (const auto plan : {plan_device_only, plan_host_only, plan_inter_allgather,
                          plan_inter_alltoall, plan_alltoall_alltoall}) {
    add(plan(request));
  }
  for (const auto plan : {plan_espresso, plan_espresso_device_only, plan_espresso_host_only,
                          plan_espresso_inter_allgather, plan_espresso_inter_alltoall,
                          plan_espresso_alltoall_alltoall}) {
    add(plan(request));
  }
  return found;
}

Status check_request(const Request& request) {
  if (const Status status = check_costs(request); !status) return status;
  if (OptionGraph(request.tree, codec_fit({}), request.setting.cluster.topology, false).empty()) {
    return Status::error(Code::kInvalidArgument,
                         "the restrictions leave no raw option, and not every tensor can be "
                         "encoded: forbid less");
  }
  return {};
}

}  // namespace

Result<Strategy> search_heuristic(const Request& request, const Buckets& buckets,
                                  SearchReport& report, double effort) {
  if (const Status status = check_request(request); !status) return tl::unexpected(status);
  BestSearch search(request, buckets, effort);
  Strategy strategy = search.run();
  report = search.report();
  return strategy;
}

Result<Strategy> search_best(const Request& request, const Buckets& buckets, SearchReport* report,
                             double effort) {
  if (const Status status = check_request(request); !status) return tl::unexpected(status);
  const bool single = buckets.count == request.setting.trace.tensors.size();
  const bool whole = single && buckets.count <= kRivalMessages && request.tree.accepts == nullptr &&
                     !request.setting.codecs.empty();
  BestSearch search(request, buckets, whole ? kWholeTreeEffort * effort : effort);
  Strategy strategy = search.run();
  SearchReport found = search.report();
  if (whole && found.value_us > found.floor_us * kCloseEnough) {
    const Strategy* best = nullptr;
    const std::vector<Strategy> others = rivals(request);
    double best_us = found.value_us;
    for (const Strategy& other : others) {
      const double us = predict_us(request.setting, other);
      if (us >= best_us) continue;
      best_us = us;
      best = &other;
    }
    if (best != nullptr) {
      strategy = search.improve_on(*best);
      found = search.report();
      // Options that only a sub-tree's own codecs have are not among the candidates.
      if (best_us < found.value_us) {
        strategy = *best;
        found.value_us = best_us;
      }
    }
  }
  if (single) finish_exactly(request, strategy, found);
  if (report != nullptr) *report = found;
  return strategy;
}

Result<Strategy> search_sub_tree(const Request& request) {
  SearchReport report;
  const std::size_t messages = request.setting.trace.tensors.size();
  auto strategy = search_heuristic(request, Buckets::singles(messages), report,
                                   messages <= kRivalMessages ? kSubTreeEffort : 1.0);
  if (strategy) finish_exactly(request, *strategy, report);
  return strategy;
}

Result<Strategy> plan_best(const Request& request) {
  return search_best(request, Buckets::singles(request.setting.trace.tensors.size()));
}

}  // namespace gradpress::plan
