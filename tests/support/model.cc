#include "support/model.h"

#include <cmath>

namespace gradpress::test {

namespace {

using codec::Kind;

/// Every codec whose payload stands for elements of its own shard.
class ElementModel final : public Model {
 public:
  ElementModel(const ModelOptions& options, Judge judge)
      : Model(options), judge_(judge), means_(residuals) {}

  Expected step(const std::vector<std::vector<float>>& grads, std::uint64_t step,
                const std::vector<Payloads>& sent) override {
    const std::size_t n = options_.shape.elements();
    Expected expected{.values = std::vector<double>(n, 0.0),
                      .tolerance = std::vector<double>(n, 1e-37)};
    for (std::uint32_t worker = 0; worker < options_.workers; ++worker) {
      const std::vector<double> carried = follow(worker, grads[worker], step, sent[worker]);
      for (std::size_t i = 0; i < n; ++i) {
        expected.values[i] += carried[i];
        expected.tolerance[i] += 0x1p-21 * std::fabs(carried[i]) + rounding_[i];
      }
    }
    for (std::size_t i = 0; i < n; ++i) {
      if (votes()) {
        // A plain exchange has no casting vote.
        const double sum = expected.values[i];
        expected.values[i] = sum == 0.0 ? 0.0 : std::copysign(1.0, sum);
      } else {
        expected.values[i] /= options_.workers;
        expected.tolerance[i] /= options_.workers;
      }
    }
    ++encodes_;
    return expected;
  }

 private:
  bool votes() const {
    return options_.spec.kind == Kind::kSign || options_.spec.kind == Kind::kSignum;
  }

  /// What worker's payloads carry, once judged; its residual is then what they do not.
  std::vector<double> follow(std::uint32_t worker, const std::vector<float>& grad,
                             std::uint64_t step, const Payloads& payloads) {
    const std::size_t n = grad.size();
    std::vector<double>& residual = residuals[worker];
    std::vector<double>& off = noise[worker];
    std::vector<double> x(n);
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = options_.feedback ? grad[i] + residual[i] : grad[i];
      if (options_.spec.kind == Kind::kSignum) {
        // Momentum and its complement are floats.
        const float kept = static_cast<float>(options_.spec.momentum);
        double& mean = means_[worker][i];
        mean = kept * mean + static_cast<float>(1.0 - options_.spec.momentum) * double{grad[i]};
        x[i] = mean;
        off[i] = kept * off[i] + 0x1p-22 * (std::fabs(mean) + std::fabs(grad[i]));
      }
      // One rounding of the sum; an exact sum keeps its exactness.
      if (options_.feedback && residual[i] != 0.0) off[i] += 0x1p-24 * std::fabs(x[i]);
    }
    std::vector<double> carried;
    rounding_.clear();
    const auto shards = static_cast<std::uint32_t>(payloads.size());
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      const ShardRange range = shard_range(n, shards, shard);
      const Words words({.seed = options_.seed,
                         .tensor = options_.tensor,
                         .step = step,
                         .site = options_.site,
                         .shard = shard});
      const Sighting seen{
          .x = std::span(x).subspan(range.begin, range.count),
          .noise = std::span(off).subspan(range.begin, range.count),
          .payload = payloads[shard],
          .words = words,
          .encodes = encodes_,
          .votes = Words({.seed = options_.seed, .tensor = options_.tensor, .step = step}),
          .begin = range.begin};
      if (std::string wrong = judge_(options_.spec, seen); !wrong.empty()) {
        complain("step " + std::to_string(step) + ", worker " + std::to_string(worker) +
                 ", shard " + std::to_string(shard) + " of " + std::to_string(shards) + ": " +
                 wrong);
      }
      const auto values = read_payload(options_.spec, payloads[shard], range.count, words);
      carried.insert(carried.end(), values.begin(), values.end());
      const auto inexact = payload_rounding(options_.spec, payloads[shard], range.count);
      rounding_.insert(rounding_.end(), inexact.begin(), inexact.end());
    }
    for (std::size_t i = 0; options_.feedback && i < n; ++i) {
      residual[i] = x[i] - carried[i];
      off[i] += 0x1p-23 * std::fabs(carried[i]) + rounding_[i];
      if (residual[i] != 0.0) off[i] += 0x1p-23 * std::fabs(residual[i]);
    }
    return carried;
  }

  Judge judge_;
  std::vector<double> rounding_;            ///< of the last payloads' values, beside one rounding
  std::vector<std::vector<double>> means_;  ///< signum's, per worker
  std::uint64_t encodes_ = 0;
};

Judge judge_of(Kind kind) {
  switch (kind) {
    case Kind::kSign:
    case Kind::kSignum:
    case Kind::kEfSign:
    case Kind::kOneBit:
      return judge_signs;
    case Kind::kTopK:
    case Kind::kChunkTopK:
    case Kind::kDgc:
    case Kind::kRedSync:
      return judge_selection;
    case Kind::kRandomK:
      return judge_randomk;
    case Kind::kRedSyncQ:
      return judge_redsync_q;
    case Kind::kInt8:
    case Kind::kQsgd:
      return judge_codes;
    case Kind::kTernGrad:
      return judge_terngrad;
    case Kind::kNatural:
      return judge_natural;
    case Kind::kKashin:
      return judge_kashin;
    case Kind::kNone:
    case Kind::kFp16:
    case Kind::kBf16:
    case Kind::kPowerSgd:
    case Kind::kAcpSgd:
      return judge_dense;
  }
  return judge_dense;
}

}  // namespace

Model::Model(const ModelOptions& options)
    : residuals(options.workers, std::vector<double>(options.shape.elements(), 0.0)),
      noise(residuals),
      options_(options) {}

void Model::complain(std::string text) { complaints.push_back(std::move(text)); }

std::unique_ptr<Model> make_model(const ModelOptions& options) {
  if (codec::effective_rank(options.spec, options.shape) > 0) return make_low_rank_model(options);
  return std::make_unique<ElementModel>(options, judge_of(options.spec.kind));
}

}  // namespace gradpress::test
