#include "plan/planner.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <utility>

#include "plan/search/best.h"
#include "plan/search/space.h"
#include "spec/facts.h"

namespace gradpress::plan {

namespace {

/// A gain below this share is not worth a codec's noise.
constexpr double kWorthwhile = 0.02;
/// Predictions that differ by less are equal: sums in another order.
constexpr double kRounding = 1e-9;

/// Sizes of buckets to try, in bytes of raw gradient.
constexpr std::array<double, 5> kBucketBytes = {256.0 * 1024, 1048576.0, 4.0 * 1048576,
                                                25.0 * 1048576, 100.0 * 1048576};

/// Every bucket is priced for itself. Finer bucketings of very large models cost seconds and 100
/// MB, and hardly differ from none.
constexpr std::uint32_t kMostBuckets = 1500;

/// Fills buckets in backward order. Tensors of different kinds never share one; of each kind one
/// bucket is open at a time.
class Filler {
 public:
  explicit Filler(double most) : most_(most) {}

  std::uint32_t add(std::uint64_t kind, double size) {
    auto open = std::ranges::find(open_, kind, &Open::kind);
    if (open == open_.end())
      open = open_.insert(open_.end(), {kind, 0.0, count_++});
    else if (open->filled + size > most_)
      *open = {kind, 0.0, count_++};
    open->filled += size;
    return open->bucket;
  }
  std::uint32_t count() const { return count_; }

 private:
  struct Open {
    std::uint64_t kind;
    double filled;
    std::uint32_t bucket;
  };
  double most_;
  std::vector<Open> open_;
  std::uint32_t count_ = 0;
};

/// Tensors that may use the same codecs share a bucket until it holds `bytes` of raw gradient;
/// larger ones travel alone.
Buckets buckets_of(const Request& request, double bytes) {
  Buckets buckets;
  Filler filler(bytes);
  const auto& tensors = request.setting.trace.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::uint64_t usable = request.allowed(i);
    for (std::size_t codec = 0; codec < request.setting.codecs.size(); ++codec) {
      const bool fits = tensors[i].shape.is_matrix() ||
                        !codec::facts_of(request.setting.codecs[codec]).is_low_rank();
      if (!fits) usable &= ~(std::uint64_t{1} << codec);
    }
    buckets.of_tensor.push_back(filler.add(usable, 4.0 * static_cast<double>(tensors[i].elements)));
  }
  buckets.count = filler.count();
  return buckets;
}

/// One of the two steps of acpsgd, its tensors in buckets of `bytes` times the step's ratio of
/// payload to gradient: ACP-SGD's rule, which gives P and Q different buckets. All others stay.
Buckets scaled_buckets(const Setting& setting, const Strategy& strategy, unsigned round,
                       double bytes) {
  const auto& tensors = setting.trace.tensors;
  const auto payload = [&](std::size_t i) -> double {
    const Choice& choice = strategy.choices[i];
    if (choice.option.is_raw() || !codec::facts_of(setting.codecs[choice.codec]).alternates()) {
      return 0.0;
    }
    return static_cast<double>(
        codec::payload_bytes(setting.codecs[choice.codec], tensors[i].shape, round));
  };
  double payloads = 0.0;
  double gradients = 0.0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (payload(i) == 0.0) continue;
    payloads += payload(i);
    gradients += 4.0 * static_cast<double>(tensors[i].elements);
  }
  Buckets buckets;
  Filler filler(bytes * payloads / gradients);
  std::vector<const Choice*> kinds;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Choice& choice = strategy.choices[i];
    if (payload(i) == 0.0) {
      // Kinds from here on are the old buckets, which nothing overfills.
      const std::uint64_t kind = tensors.size() + strategy.buckets.of_tensor[i];
      buckets.of_tensor.push_back(filler.add(kind, 0.0));
      continue;
    }
    auto kind = std::ranges::find_if(kinds, [&](const Choice* known) { return *known == choice; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), &choice);
    buckets.of_tensor.push_back(
        filler.add(static_cast<std::uint64_t>(kind - kinds.begin()), payload(i)));
  }
  buckets.count = filler.count();
  return buckets;
}

/// Each step of an alternating strategy gets the buckets that suit it.
void scale_buckets(const Setting& setting, Strategy& strategy) {
  if (!alternates(setting, strategy)) return;
  strategy.buckets_q = strategy.buckets;
  for (const unsigned round : {0U, 1U}) {
    double best_us = predict_step_us(setting, strategy, round);
    for (const double bytes : kBucketBytes) {
      Strategy trial = strategy;
      (round == 0 ? trial.buckets : trial.buckets_q) =
          scaled_buckets(setting, strategy, round, bytes);
      const double us = predict_step_us(setting, trial, round);
      if (us >= best_us) continue;
      best_us = us;
      strategy = std::move(trial);
    }
  }
}

std::uint32_t messages_of(const Setting& setting, const Strategy& strategy) {
  if (!alternates(setting, strategy)) return 2 * strategy.buckets.count;
  return strategy.buckets.count + strategy.buckets_q.count;
}

Result<Strategy> plan_with_buckets(const Request& request, Strategy single, double alike) {
  struct Candidate {
    Strategy strategy;
    double us;
  };
  const Setting& setting = request.setting;
  std::vector<Candidate> candidates;
  double best_us = std::numeric_limits<double>::infinity();
  const auto add = [&](Strategy strategy) {
    scale_buckets(setting, strategy);
    const double us = predict_us(setting, strategy);
    best_us = std::min(best_us, us);
    candidates.push_back({std::move(strategy), us});
  };
  add(std::move(single));
  Buckets last = Buckets::singles(setting.trace.tensors.size());
  for (const double bytes : kBucketBytes) {
    const Buckets buckets = buckets_of(request, bytes);
    if (buckets == last || buckets.count > kMostBuckets) continue;
    last = buckets;
    auto strategy = search_best(request, buckets);
    if (!strategy) return strategy;
    add(std::move(*strategy));
  }
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return candidate.us > (1.0 + std::max(alike, kRounding)) * best_us;
  });
  return std::move(std::ranges::min_element(candidates, {}, [&](const Candidate& candidate) {
                     return std::pair(messages_of(setting, candidate.strategy), candidate.us);
                   })->strategy);
}

std::string in_ms(double us) {
  char text[32];
  (void)std::snprintf(text, sizeof text, us < 100'000.0 ? "%.1f ms" : "%.0f ms", us / 1000.0);
  return text;
}

std::string in_percent(double share) {
  char text[32];
  (void)std::snprintf(text, sizeof text, share < 0.0995 ? "%.1f %%" : "%.0f %%", 100.0 * share);
  return text;
}

std::string verdict_of(const Setting& setting, const Plan& plan) {
  const double compute = plan.timeline.forward_us + plan.timeline.backward_us;
  const double gain = 1.0 - plan.iteration_us / plan.raw_us;
  const double raw_exposed = 1.0 - compute / plan.raw_us;
  const LinkModel& link =
      setting.cluster.topology.machines > 1 ? setting.cluster.inter : setting.cluster.intra;
  std::string rate;
  if (link.link.known) {
    char text[48];
    (void)std::snprintf(text, sizeof text, " (%.3g Gb/s link)", link.link.gbps);
    rate = text;
  }
  std::size_t encoded = 0;
  std::vector<std::string> used;
  for (const Choice& choice : plan.strategy.choices) {
    if (choice.option.is_raw()) continue;
    ++encoded;
    const std::string name = codec::to_text(setting.codecs[choice.codec]);
    if (std::ranges::find(used, name) == used.end()) used.push_back(name);
  }
  std::string names;
  for (const std::string& name : used) names.append(names.empty() ? "" : " and ").append(name);
  if (encoded > 0 && gain > 0.0 && gain < kWorthwhile) {
    return "compression hardly pays: " + std::to_string(encoded) + " of " +
           std::to_string(plan.strategy.choices.size()) + " tensors with " + names + " save " +
           in_percent(gain) + "; without compression " + in_percent(raw_exposed) +
           " of a step is exposed communication" + rate;
  }
  if (gain <= 0.0 || encoded == 0) {
    return "do not compress: " + in_percent(raw_exposed) + " of a step is exposed communication" +
           rate + "; the codecs could save " + in_percent(std::max(0.0, gain));
  }
  return "compress " + std::to_string(encoded) + " of " +
         std::to_string(plan.strategy.choices.size()) + " tensors with " + names + ": " +
         in_ms(plan.iteration_us) + " instead of " + in_ms(plan.raw_us) + " a step (-" +
         in_percent(gain) + "); without compression " + in_percent(raw_exposed) +
         " of a step is exposed communication" + rate;
}

Status check_codecs(const Setting& setting, const PlanOptions& options) {
  if (setting.codecs.size() > 16) {
    return Status::error(Code::kInvalidArgument, "wanted at most 16 codecs, got ",
                         setting.codecs.size());
  }
  for (const codec::Spec& spec : setting.codecs) {
    if (codec_fit(spec).whole_tensor && !options.tree.extended) {
      return Status::error(Code::kInvalidArgument, "codec ", codec::to_text(spec),
                           " needs payloads that collectives add up, which the paper's tree does "
                           "not have: use --tree extended");
    }
  }
  return {};
}

}  // namespace

Result<Plan> make_plan(const Setting& setting, const PlanOptions& options) {
  const auto named = find_strategy(options.strategy);
  if (!named) return tl::unexpected(named.error());
  if (const Status status = check_codecs(setting, options); !status) return tl::unexpected(status);
  const auto allowed = allowed_codecs(options.policy, setting.trace, setting.codecs);
  if (!allowed) return tl::unexpected(allowed.error());
  const Request request{setting, options.tree, *allowed};
  const bool is_best = options.strategy == "best";
  const Buckets singles = Buckets::singles(setting.trace.tensors.size());
  SearchReport report;
  auto strategy = is_best ? search_best(request, singles, &report) : (*named)->plan(request);
  if (!strategy) return tl::unexpected(strategy.error());
  const bool fused = options.fusion == Fusion::kAuto && is_best;
  const Request raw{{setting.trace, setting.cluster, {}}, options.tree};
  SearchReport raw_report;
  // Nine options: a local optimum is found at once.
  constexpr double kRawEffort = 0.05;
  auto raw_strategy = search_best(raw, singles, &raw_report, kRawEffort);
  if (!raw_strategy) return tl::unexpected(raw_strategy.error());
  Plan plan;
  plan.raw_us = raw_report.value_us;
  if (fused) {
    strategy = plan_with_buckets(request, std::move(*strategy), options.alike);
    if (!strategy) return tl::unexpected(strategy.error());
    raw_strategy = plan_with_buckets(raw, std::move(*raw_strategy), options.alike);
    if (!raw_strategy) return tl::unexpected(raw_strategy.error());
    plan.raw_us = predict_us(raw.setting, *raw_strategy);
    const double least_gain = std::max(options.least_gain, kRounding);
    if (predict_us(setting, *strategy) > (1.0 - least_gain) * plan.raw_us) {
      strategy = std::move(raw_strategy);
    }
  }
  plan.strategy_name = options.strategy;
  plan.extended = options.tree.extended;
  plan.strategy = std::move(*strategy);
  // The search knows its bound already; other strategies and fusion have it computed.
  plan.bound_us = report.bound_us;
  if (fused || !is_best) {
    const SearchSpace space(setting, options.tree, *allowed, singles);
    plan.bound_us = fused ? space.fused_bound_us() : space.bound_us();
  }
  plan.timeline = predict(setting, plan.strategy);
  plan.iteration_us = plan.timeline.iteration_us;
  if (alternates(setting, plan.strategy)) plan.iteration_us = predict_us(setting, plan.strategy);
  plan.verdict = verdict_of(setting, plan);
  plan.warnings = extrapolated_costs(setting.cluster, setting.codecs, setting.trace.tensors);
  return plan;
}

}  // namespace gradpress::plan
