#include "codec/schedule.h"

#include <algorithm>
#include <cmath>

#include "spec/facts.h"

namespace gradpress::codec {

Result<Schedule> Schedule::make(std::string_view text, const WarmUp& warm_up) {
  const auto spec = parse_spec(text);
  if (!spec) return tl::unexpected(spec.error());
  if (facts_of(*spec).value != Value::kRatio) {
    return fail(Code::kInvalidArgument, "warm-up: wanted a codec with a ratio, got \"", text, "\"");
  }
  if (warm_up.falling_epochs > 0 && !warm_up.ratios.empty()) {
    return fail(Code::kInvalidArgument, "warm-up: wanted falling epochs or a list of ratios, got ",
                warm_up.falling_epochs, " epochs and ", warm_up.ratios.size(), " ratios");
  }
  std::vector<double> ratios(warm_up.dense_epochs, 1.0);
  for (const double ratio : warm_up.ratios) {
    if (!(ratio > 0.0 && ratio <= 1.0)) {
      return fail(Code::kInvalidArgument, "warm-up: wanted ratios above 0 and at most 1, got ",
                  ratio);
    }
    ratios.push_back(ratio);
  }
  const double factor = std::pow(spec->ratio, 1.0 / (warm_up.falling_epochs + 1.0));
  for (std::uint32_t epoch = 0; epoch < warm_up.falling_epochs; ++epoch) {
    ratios.push_back(std::max(std::pow(factor, epoch + 1.0), spec->ratio));
  }
  return Schedule(*spec, std::move(ratios));
}

std::string Schedule::codec_at(std::uint64_t epoch) const {
  if (epoch >= ratios_.size()) return to_text(spec_);
  if (ratios_[epoch] == 1.0) return to_text(Spec{});
  Spec spec = spec_;
  spec.ratio = ratios_[epoch];
  return to_text(spec);
}

}  // namespace gradpress::codec
