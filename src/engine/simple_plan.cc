#include "engine/simple_plan.h"

#include <gradpress/codec.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "plan/fit.h"
#include "spec/facts.h"

namespace gradpress::engine {

namespace {

constexpr std::string_view kSummed = "Comp@device > allreduce@flat > Decomp@device";
constexpr std::string_view kSummedTwice =
    "Comp@device > allreduce@flat > Comp@device > allreduce@flat > Decomp@device";
constexpr std::string_view kGathered = "Comp@device > allgather@flat > Decomp@device";
constexpr std::string_view kExchanged =
    "Comp@device > alltoall@flat > Decomp@device > Comp@device > allgather@flat > Decomp@device";
constexpr std::string_view kRawFlat = "allreduce@flat";
constexpr std::string_view kRawHierarchical =
    "reduce-scatter@intra1 > allreduce@inter > allgather@intra2";

std::string_view encoded_path(const codec::Spec& spec, const plan::CodecFit& fit,
                              bool sum_payloads) {
  if (fit.rounds == 2) return kSummedTwice;
  if (fit.whole_tensor || (fit.reducible && sum_payloads)) return kSummed;
  return codec::facts_of(spec).is_sparse() ? kGathered : kExchanged;
}

/// Fills messages in the order of backward.
class Filler {
 public:
  Filler(const plan::Option& option, const SimplePlanOptions& options, std::uint64_t bucket_bytes)
      : option_(option), options_(&options), bucket_bytes_(bucket_bytes) {}

  void add(sync::Member member, std::vector<sync::MessageSpec>& messages) {
    if (open_ == kNone) {
      open_ = messages.size();
      messages.push_back({.option = option_, .seed = options_->seed});
      bytes_ = 0;
    }
    bytes_ += sizeof(float) * member.shape.elements();
    messages[open_].members.push_back(std::move(member));
    if (!options_->fusion || bytes_ >= bucket_bytes_) open_ = kNone;
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};

  plan::Option option_;
  const SimplePlanOptions* options_;
  std::uint64_t bucket_bytes_;
  std::size_t open_ = kNone;
  std::uint64_t bytes_ = 0;
};

/// What one codec needs: its path, and the message of it that is open.
struct CodecPlan {
  codec::Spec spec = {};
  plan::CodecFit fit = {};
  plan::Option option = {};
  Filler filler;
};

Result<CodecPlan> plan_for(const std::string& codec, const plan::Option& raw,
                           const SimplePlanOptions& options) {
  const auto spec = codec::parse_spec(codec);
  if (!spec) return tl::unexpected(spec.error());
  const plan::CodecFit fit = plan::codec_fit(*spec);
  Result<plan::Option> option = raw;
  if (fit.encodes) option = plan::parse_option(encoded_path(*spec, fit, options.sum_payloads));
  if (!option) return tl::unexpected(option.error());
  return CodecPlan{.spec = *spec,
                   .fit = fit,
                   .option = *option,
                   .filler = Filler(*option, options, options.bucket_bytes)};
}

}  // namespace

bool saves_bytes(const codec::Spec& spec, const Shape& shape, std::uint64_t workers,
                 bool sum_payloads) {
  const std::uint64_t raw = sizeof(float) * shape.elements();
  const std::uint64_t payload = codec::step_bytes(spec, shape);
  if (payload >= raw) return false;
  const bool gathered = encoded_path(spec, plan::codec_fit(spec), sum_payloads) == kGathered;
  // To each of W − 1 others the payload, or (W − 1)/W of twice the raw tensor.
  return !gathered || workers * payload < 2 * raw;
}

Result<std::vector<sync::MessageSpec>> simple_plan(std::span<const TensorSpec> tensors,
                                                   std::span<const std::string> codecs,
                                                   const comm::Topology& topology,
                                                   const SimplePlanOptions& options) {
  const plan::Topology shape_of_world{.machines = topology.machines,
                                      .workers = topology.workers_per_machine};
  const bool flat = topology.machines == 1 || topology.workers_per_machine == 1;
  const auto raw = plan::parse_option(flat ? kRawFlat : kRawHierarchical);
  if (!raw) return tl::unexpected(raw.error());

  std::vector<sync::MessageSpec> messages;
  Filler raw_filler(*raw, options, options.raw_bucket_bytes);
  std::map<std::string, CodecPlan, std::less<>> plans;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto known = plans.find(codecs[i]);
    if (known == plans.end()) {
      auto made = plan_for(codecs[i], *raw, options);
      if (!made) return tl::unexpected(made.error());
      known = plans.emplace(codecs[i], std::move(*made)).first;
    }
    CodecPlan& plan = known->second;
    const Shape& shape = tensors[i].shape;
    sync::Member member{
        .name = tensors[i].name, .shape = shape, .tensor = i, .codec = plan.fit.name};
    const bool encode = plan.fit.encodes && shape.elements() >= options.least_elements &&
                        plan::why_not(plan.option, plan.fit, shape, shape_of_world).empty() &&
                        saves_bytes(plan.spec, shape, topology.workers(), options.sum_payloads);
    if (!encode) member.codec = "none";
    // Low-rank payloads are float32 and summed: what travels raw travels with them.
    const bool join = plan.fit.whole_tensor && plan.fit.rounds == 1 && options.fusion;
    Filler& filler = encode || join ? plan.filler : raw_filler;
    filler.add(std::move(member), messages);
  }
  for (sync::MessageSpec& message : messages) {
    const bool payloads = std::ranges::any_of(
        message.members, [](const sync::Member& member) { return member.codec != "none"; });
    if (!payloads) message.option = *raw;
  }
  return messages;
}

Result<std::vector<sync::MessageSpec>> simple_plan(std::span<const TensorSpec> tensors,
                                                   std::string_view codec,
                                                   const comm::Topology& topology,
                                                   const SimplePlanOptions& options) {
  const std::vector<std::string> codecs(tensors.size(), std::string(codec));
  return simple_plan(tensors, codecs, topology, options);
}

}  // namespace gradpress::engine
