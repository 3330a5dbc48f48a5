#include "optimizer.h"

#include <torch/torch.h>

#include <cmath>
#include <utility>

namespace gradpress::trainer {

namespace {

/// Biases and norms are not drawn to zero.
bool decays(const torch::Tensor& parameter) { return parameter.dim() > 1; }

class Sgd final : public Optimizer {
 public:
  Sgd(OptimizerSettings settings, NamedTensors parameters, bool engine_has_momentum)
      : settings_(std::move(settings)),
        parameters_(std::move(parameters)),
        engine_has_momentum_(engine_has_momentum) {
    for (const auto& [name, parameter] : parameters_) {
      momentum_.push_back(keeps(parameter) ? torch::zeros_like(parameter) : torch::Tensor());
    }
  }

  void step(double lr) override {
    const torch::NoGradGuard guard;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      auto& parameter = parameters_[i].second;
      if (!parameter.grad().defined()) continue;
      parameter.add_(update(parameter, momentum_[i]), -lr);
    }
  }

  NamedTensors state() override {
    NamedTensors state;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (momentum_[i].defined()) {
        state.emplace_back("momentum/" + parameters_[i].first, momentum_[i]);
      }
    }
    return state;
  }

 private:
  bool decayed(const torch::Tensor& parameter) const {
    return settings_.weight_decay != 0.0 && decays(parameter);
  }
  bool keeps(const torch::Tensor& parameter) const {
    return settings_.momentum != 0.0 && (!engine_has_momentum_ || decayed(parameter));
  }

  torch::Tensor update(const torch::Tensor& parameter, torch::Tensor& momentum) const {
    const auto& gradient = parameter.grad();
    if (!engine_has_momentum_) {
      const auto whole =
          decayed(parameter) ? gradient.add(parameter, settings_.weight_decay) : gradient;
      return with_momentum(whole, momentum);
    }
    if (!decayed(parameter)) return gradient;
    return gradient + with_momentum(parameter * settings_.weight_decay, momentum);
  }

  torch::Tensor with_momentum(const torch::Tensor& direction, torch::Tensor& momentum) const {
    if (!momentum.defined()) return direction;
    momentum.mul_(settings_.momentum).add_(direction);
    return settings_.nesterov ? direction.add(momentum, settings_.momentum) : momentum;
  }

  OptimizerSettings settings_;
  NamedTensors parameters_;
  bool engine_has_momentum_;
  std::vector<torch::Tensor> momentum_;
};

class AdamW final : public Optimizer {
 public:
  AdamW(OptimizerSettings settings, NamedTensors parameters)
      : settings_(std::move(settings)), parameters_(std::move(parameters)) {
    for (const auto& [name, parameter] : parameters_) {
      first_.push_back(torch::zeros_like(parameter));
      second_.push_back(torch::zeros_like(parameter));
    }
  }

  void step(double lr) override {
    const torch::NoGradGuard guard;
    count_ += 1;
    const auto count = static_cast<double>(count_.item<std::int64_t>());
    const double first_bias = 1.0 - std::pow(settings_.beta1, count);
    const double second_bias = std::sqrt(1.0 - std::pow(settings_.beta2, count));
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      auto& parameter = parameters_[i].second;
      const auto& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (decays(parameter)) parameter.mul_(1.0 - lr * settings_.weight_decay);
      first_[i].mul_(settings_.beta1).add_(gradient, 1.0 - settings_.beta1);
      second_[i].mul_(settings_.beta2).addcmul_(gradient, gradient, 1.0 - settings_.beta2);
      const auto scale = second_[i].sqrt().div_(second_bias).add_(settings_.epsilon);
      parameter.addcdiv_(first_[i], scale, -lr / first_bias);
    }
  }

  NamedTensors state() override {
    NamedTensors state{{"count", count_}};
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      state.emplace_back("first/" + parameters_[i].first, first_[i]);
      state.emplace_back("second/" + parameters_[i].first, second_[i]);
    }
    return state;
  }

 private:
  OptimizerSettings settings_;
  NamedTensors parameters_;
  torch::Tensor count_ = torch::zeros({}, torch::kInt64);
  std::vector<torch::Tensor> first_;
  std::vector<torch::Tensor> second_;
};

}  // namespace

Result<std::unique_ptr<Optimizer>> make_optimizer(const OptimizerSettings& settings,
                                                  const NamedTensors& parameters,
                                                  bool engine_has_momentum) {
  if (settings.name == "sgd") {
    return std::make_unique<Sgd>(settings, parameters, engine_has_momentum);
  }
  if (settings.name == "adamw") return std::make_unique<AdamW>(settings, parameters);
  return fail(Code::kInvalidArgument, "--optimizer \"", settings.name, "\": wanted sgd or adamw");
}

}  // namespace gradpress::trainer
