#include "plan/candidates.h"

#include <algorithm>

namespace gradpress::plan {

namespace {

bool same_tasks(const Candidate& a, const Candidate& b) {
  if (a.chain.count != b.chain.count) return false;
  for (std::size_t i = 0; i < a.chain.count; ++i) {
    if (a.chain.us[i] != b.chain.us[i] || a.chain.lanes[i] != b.chain.lanes[i]) return false;
  }
  return true;
}

bool before(const Candidate& a, const Candidate& b) {
  if (a.total_us != b.total_us) return a.total_us < b.total_us;
  if (a.chain.count != b.chain.count) return a.chain.count < b.chain.count;
  if (a.chain.us != b.chain.us) return a.chain.us < b.chain.us;
  return a.chain.lanes < b.chain.lanes;
}

}  // namespace

Candidate make_candidate(const Choice& choice, const Chain& chain) {
  Candidate candidate{.choice = choice, .chain = chain, .loads = loads_of(chain)};
  for (const double us : candidate.loads) candidate.total_us += us;
  return candidate;
}

Candidate priced(const Setting& setting, const CommCosts& comm, const Shape& shape,
                 const Choice& choice) {
  const codec::Spec* const spec = choice.option.is_raw() ? nullptr : &setting.codecs[choice.codec];
  return make_candidate(choice, Pricer(comm, setting.cluster, spec, shape).chain(choice.option));
}

std::vector<Candidate> all_candidates(const Setting& setting, const CommCosts& comm,
                                      const OptionTree& tree, const Shape& shape,
                                      std::uint32_t allowed_codecs) {
  std::vector<Candidate> result;
  const std::vector<Option> options = tree.options();
  Pricer raw(comm, setting.cluster, nullptr, shape);
  for (const Option& option : options) {
    if (option.is_raw()) result.push_back(make_candidate({.option = option}, raw.chain(option)));
  }
  for (std::size_t codec = 0; codec < setting.codecs.size(); ++codec) {
    if ((allowed_codecs >> codec & 1U) == 0) continue;
    const CodecFit fit = codec_fit(setting.codecs[codec]);
    Pricer pricer(comm, setting.cluster, &setting.codecs[codec], shape);
    for (const Option& option : options) {
      if (option.is_raw() || !why_not(option, fit, shape, comm.topology()).empty()) continue;
      result.push_back(make_candidate({.option = option, .codec = static_cast<std::uint8_t>(codec)},
                                      pricer.chain(option)));
    }
  }
  std::ranges::stable_sort(result, before);
  result.erase(std::unique(result.begin(), result.end(), same_tasks), result.end());
  return result;
}

}  // namespace gradpress::plan
