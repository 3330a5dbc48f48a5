#include "settings.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "spec/facts.h"

namespace gradpress::trainer {

namespace {

template <std::size_t kCount>
Status one_of(std::string_view flag, const std::string& got,
              const std::array<std::string_view, kCount>& wanted) {
  if (std::ranges::find(wanted, got) != wanted.end()) return {};
  std::string names;
  for (const std::string_view name : wanted) names.append(names.empty() ? "" : ", ").append(name);
  return Status::error(Code::kInvalidArgument, flag, " \"", got, "\": wanted one of ", names);
}

Status check_compression(const Settings& settings) {
  const CompressionSettings& compression = settings.compression;
  if (!compression.plan.empty() && compression.codec != "none") {
    return Status::error(Code::kInvalidArgument, "--plan ", compression.plan, " and --codec ",
                         compression.codec, ": wanted one of them");
  }
  if (!compression.auto_codecs.empty() && compression.plan != "auto") {
    return Status::error(
        Code::kInvalidArgument, "--auto-codecs goes with --plan auto, got ",
        compression.plan.empty() ? "--codec " + compression.codec : "--plan " + compression.plan);
  }
  const bool warms = compression.dense_epochs > 0.0 || compression.falling_epochs > 0;
  if (warms && !compression.plan.empty()) {
    return Status::error(Code::kInvalidArgument,
                         "--dense-epochs and --falling-epochs go with --codec, got --plan ",
                         compression.plan);
  }
  if (compression.momentum_correction == Choice::kOn && settings.optimizer.name != "sgd") {
    return Status::error(Code::kInvalidArgument,
                         "--momentum-correction on: wanted --optimizer sgd, got ",
                         settings.optimizer.name);
  }
  return {};
}

Status check_rate_correction(const Settings& settings) {
  const CompressionSettings& compression = settings.compression;
  if (!compression.rate_correction) return {};
  if (settings.optimizer.name != "sgd") {
    return Status::error(
        Code::kInvalidArgument,
        "--rate-correction: wanted --optimizer sgd, whose update is the rate times "
        "the gradient, got ",
        settings.optimizer.name);
  }
  return {};
}

}  // namespace

bool is_sparsifier(const std::string& codec) {
  const auto spec = codec::parse_spec(codec);
  return spec && codec::facts_of(*spec).is_sparse() && codec::traits_of(*spec).supports_feedback;
}

Status check(const Settings& settings) {
  constexpr std::array<std::string_view, 2> kOptimizers = {"sgd", "adamw"};
  constexpr std::array<std::string_view, 3> kSchedules = {"constant", "step", "cosine"};
  constexpr std::array<std::string_view, 3> kBackends = {"local", "gloo", "mpi"};
  if (Status status = one_of("--optimizer", settings.optimizer.name, kOptimizers); !status) {
    return status;
  }
  if (Status status = one_of("--schedule", settings.schedule.name, kSchedules); !status) {
    return status;
  }
  if (Status status = one_of("--backend", settings.workers.backend, kBackends); !status) {
    return status;
  }
  if (settings.optimizer.nesterov &&
      (settings.optimizer.momentum == 0.0 || settings.optimizer.name != "sgd")) {
    return Status::error(Code::kInvalidArgument,
                         "--nesterov: wanted --optimizer sgd and a --momentum above 0");
  }
  if (settings.save_every > 0 && settings.save.empty()) {
    return Status::error(Code::kInvalidArgument, "--save-every ", settings.save_every,
                         ": wanted --save FOLDER with it");
  }
  if (settings.model.dropout > 0.0 && settings.model.name != "lstm-lm" &&
      settings.model.name != "transformer-lm") {
    return Status::error(Code::kInvalidArgument,
                         "--dropout: wanted --model lstm-lm or transformer-lm, got ",
                         settings.model.name);
  }
  if (Status status = check_rate_correction(settings); !status) return status;
  return check_compression(settings);
}

}  // namespace gradpress::trainer
