#include "plan/search/isolated.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>

namespace gradpress::plan {

namespace {

Action comm_action(Collective collective, Phase phase, Step step) {
  return {.kind = ActionKind::kComm, .collective = collective, .phase = phase, .step = step};
}

}  // namespace

Option raw_hierarchical() {
  const std::array actions = {comm_action(Collective::kReduceScatter, Phase::kIntra1, Step::kFirst),
                              comm_action(Collective::kAllReduce, Phase::kInter, Step::kWhole),
                              comm_action(Collective::kAllGather, Phase::kIntra2, Step::kSecond)};
  return Option(actions);
}

bool is_inter_family(const Option& option) {
  const auto actions = option.actions();
  const Action& first = actions.front();
  if (first.kind != ActionKind::kComm || first.collective != Collective::kReduceScatter) {
    return false;
  }
  return first.phase == Phase::kIntra1 && actions.back().kind == ActionKind::kComm &&
         !actions.back().encoded;
}

Choice isolated_choice(const Setting& setting, const CommCosts& comm,
                       std::span<const Option> family, const Shape& shape,
                       std::uint32_t allowed_codecs) {
  Choice best{.option = raw_hierarchical()};
  double best_us = std::numeric_limits<double>::infinity();
  const auto consider = [&](Pricer& pricer, const Option& option, std::size_t codec) {
    const Chain chain = pricer.chain(option);
    double us = 0.0;
    for (std::size_t i = 0; i < chain.count; ++i) us += chain.us[i];
    if (us >= best_us) return;
    best_us = us;
    best = {.option = option, .codec = static_cast<std::uint8_t>(codec)};
  };
  Pricer raw(comm, setting.cluster, nullptr, shape);
  for (const Option& option : family) {
    if (option.is_raw()) consider(raw, option, 0);
  }
  for (std::size_t codec = 0; codec < setting.codecs.size(); ++codec) {
    if ((allowed_codecs >> codec & 1U) == 0) continue;
    const CodecFit fit = codec_fit(setting.codecs[codec]);
    Pricer pricer(comm, setting.cluster, &setting.codecs[codec], shape);
    for (const Option& option : family) {
      if (option.is_raw() || !why_not(option, fit, shape, comm.topology()).empty()) continue;
      consider(pricer, option, codec);
    }
  }
  return best;
}

Result<Strategy> plan_isolated(const Request& request, Family family) {
  if (const Status status = check_costs(request); !status) return tl::unexpected(status);
  Restrictions tree = request.tree;
  tree.accepts = family;
  const std::vector<Option> options = OptionTree(tree).options();
  const CommCosts comm(request.setting.cluster);
  const auto& tensors = request.setting.trace.tensors;
  Strategy strategy{.choices = {}, .buckets = Buckets::singles(tensors.size())};
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>, Choice> known;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Shape& shape = tensors[i].shape;
    const std::uint64_t rows = shape.is_matrix() ? shape.rows() : 0;
    const auto [at, is_new] = known.try_emplace({shape.elements(), rows, request.allowed(i)});
    if (is_new) {
      at->second = isolated_choice(request.setting, comm, options, shape, request.allowed(i));
    }
    strategy.choices.push_back(at->second);
  }
  return strategy;
}

Result<Strategy> plan_uniform(const Request& request, const Option& option) {
  if (const Status status = check_costs(request); !status) return tl::unexpected(status);
  const auto& tensors = request.setting.trace.tensors;
  Strategy strategy{.choices = {}, .buckets = Buckets::singles(tensors.size())};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Choice choice{.option = raw_hierarchical()};
    for (std::size_t codec = request.setting.codecs.size(); codec-- > 0 && !option.is_raw();) {
      const CodecFit fit = codec_fit(request.setting.codecs[codec]);
      const bool may = (request.allowed(i) >> codec & 1U) != 0;
      const Topology& topology = request.setting.cluster.topology;
      if (may && why_not(option, fit, tensors[i].shape, topology).empty()) {
        choice = {.option = option, .codec = static_cast<std::uint8_t>(codec)};
      }
    }
    strategy.choices.push_back(choice);
  }
  return strategy;
}

}  // namespace gradpress::plan
