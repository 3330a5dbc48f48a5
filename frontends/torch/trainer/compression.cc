#include "compression.h"

#include <algorithm>
#include <vector>

#include "spec/facts.h"

namespace gradpress::trainer {

namespace {

/// What the plan is for: the gradients in the order in which DataParallel takes them.
PlanTarget target_of(const CompressionInput& input) {
  PlanTarget target{.machines = input.world.machines,
                    .workers_per_machine = input.world.workers_per_machine};
  for (auto it = input.parameters.rbegin(); it != input.parameters.rend(); ++it) {
    std::vector<std::uint64_t> dims;
    dims.reserve(it->second.sizes().size());
    for (const std::int64_t extent : it->second.sizes()) {
      dims.push_back(static_cast<std::uint64_t>(extent));
    }
    const auto shape = Shape::from(dims);
    target.tensors.push_back(
        {.name = it->first,
         .shape = shape ? *shape : Shape::flat(static_cast<std::uint64_t>(it->second.numel()))});
  }
  return target;
}

/// Whether a sparsifier may run at any time.
bool may_be_sparse(const CompressionSettings& settings, const EngineOptions& engine) {
  if (settings.plan == "auto") {
    return std::ranges::any_of(engine.automatic.codecs, is_sparsifier);
  }
  if (engine.plan) {
    return std::ranges::any_of(engine.plan->tensors, [](const PlannedTensor& tensor) {
      return is_sparsifier(tensor.codec);
    });
  }
  return is_sparsifier(settings.codec);
}

}  // namespace

Result<Compression> choose_compression(const CompressionInput& input) {
  const Settings& settings = input.settings;
  const CompressionSettings& wanted = settings.compression;
  Compression result;
  result.options.clip_before = settings.clip_before;
  result.options.clip_after = settings.clip_after;
  EngineOptions& engine = result.options.engine;
  engine.codec = input.codec;
  engine.pipelining = wanted.overlap;
  engine.fusion = wanted.fusion;
  engine.seed = settings.seed;
  engine.least_elements = wanted.least_elements;
  if (!wanted.auto_codecs.empty()) engine.automatic.codecs = wanted.auto_codecs;
  engine.record_spans = !settings.json.empty();
  if (wanted.dense_output) {
    engine.rules.push_back({.pattern = std::string(kOutputPattern), .codec = "none"});
  }
  // RedSync's authors do not quantise the output layer.
  const codec::Facts* const facts = codec::facts_of_text(wanted.codec);
  if (!wanted.dense_output && facts != nullptr && !facts->for_output.empty()) {
    engine.rules.push_back(
        {.pattern = std::string(kOutputPattern),
         .codec = std::string(facts->for_output) + wanted.codec.substr(facts->name.size())});
  }
  if (!wanted.plan.empty() && wanted.plan != "auto") {
    auto plan = load_plan(wanted.plan, target_of(input));
    if (!plan) return tl::unexpected(plan.error());
    engine.plan = std::move(*plan);
  }
  const bool has_momentum = settings.optimizer.name == "sgd" && settings.optimizer.momentum > 0.0;
  const bool sparse = may_be_sparse(wanted, engine);
  result.engine_has_momentum =
      has_momentum && (wanted.momentum_correction == Choice::kOn ||
                       (wanted.momentum_correction == Choice::kAuto && sparse));
  if (result.engine_has_momentum && wanted.rate_correction) {
    return fail(Code::kInvalidArgument,
                "--rate-correction: wanted --momentum-correction off, got momentum correction: "
                "momentum would be scaled with the residuals");
  }
  if (result.engine_has_momentum) {
    engine.momentum = MomentumCorrection{.momentum = settings.optimizer.momentum,
                                         .nesterov = settings.optimizer.nesterov,
                                         .masking = wanted.masking,
                                         .clip_norm = wanted.local_clip};
    if (wanted.momentum_correction == Choice::kAuto) {
      result.message =
          "momentum correction is on: momentum accumulates before the sparsifier "
          "(--momentum-correction off turns it off)";
    }
  } else if (sparse && !has_momentum && settings.optimizer.name != "sgd") {
    result.message =
        "no momentum correction: it is for sgd, and adamw takes the mean gradient as it is";
  }
  return result;
}

}  // namespace gradpress::trainer
