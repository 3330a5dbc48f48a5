#include "engine/velocity.h"

#include <algorithm>
#include <cmath>

#include "kernels/vector.h"

namespace gradpress::engine {

codec::MomentumOptions momentum_options(const MomentumCorrection& correction) {
  return {.momentum = correction.momentum,
          .nesterov = correction.nesterov,
          .masking = correction.masking,
          .clip_norm = correction.clip_norm};
}

Velocity::Velocity(const MomentumCorrection& correction, std::uint32_t workers, std::size_t tensors)
    : correction_(correction), workers_(workers), velocity_(tensors), carried_(tensors) {}

kernels::MomentumArgs Velocity::step_of(std::span<const float> mean) const {
  kernels::MomentumArgs step{.momentum = static_cast<float>(correction_.momentum),
                             .nesterov = correction_.nesterov};
  if (correction_.clip_norm == 0.0) return step;
  const double norm = workers_ * std::sqrt(kernels::sum_squares(mean));
  if (norm > correction_.clip_norm) {
    step.grad_scale = static_cast<float>(correction_.clip_norm / norm);
  }
  return step;
}

bool Velocity::fits(std::size_t tensor, std::span<const float> mean, bool before) const {
  if (before) return true;
  const std::span<const float> velocity = velocity_[tensor].span();
  if (velocity.empty()) {
    return kernels::first_out_of_range(mean, kGradientLimit) == kernels::kAllInRange;
  }
  return kernels::momentum_in_range(mean, velocity, step_of(mean), kGradientLimit);
}

void Velocity::apply(std::size_t tensor, std::span<float> mean, bool before) {
  if (!before) {
    Buffer<float>& velocity = velocity_[tensor];
    if (velocity.empty()) velocity = Buffer<float>(mean.size());
    const kernels::MomentumArgs step = step_of(mean);
    if (correction_.nesterov) {
      sum_.resize(std::max(sum_.size(), mean.size()));
      const std::span<float> sum = std::span(sum_).first(mean.size());
      kernels::update_momentum(mean, velocity.span(), step, sum);
      std::ranges::copy(sum, mean.begin());
    } else {
      kernels::update_momentum(mean, velocity.span(), step, {});
      std::ranges::copy(velocity.span(), mean.begin());
    }
  }
  Buffer<float>& carried = carried_[tensor];
  if (!carried.empty()) kernels::add(mean, carried.span());
  carried = Buffer<float>();
}

void Velocity::set(std::size_t tensor, std::span<const float> momentum) {
  velocity_[tensor] = Buffer<float>(momentum.size());
  std::ranges::copy(momentum, velocity_[tensor].span().begin());
}

void Velocity::carry(std::size_t tensor, std::span<const float> mean) {
  if (carried_[tensor].empty()) carried_[tensor] = Buffer<float>(mean.size());
  kernels::add(carried_[tensor].span(), mean);
}

void Velocity::scale(float factor) {
  for (Buffer<float>& velocity : velocity_) kernels::scale(velocity.span(), factor);
  for (Buffer<float>& carried : carried_) kernels::scale(carried.span(), factor);
}

void Velocity::save(std::size_t tensor, sync::ByteWriter& out) const {
  out.put_floats(velocity_[tensor].span());
  out.put_floats(carried_[tensor].span());
}

Status Velocity::load(std::size_t tensor, std::size_t elements, sync::ByteReader& in) {
  for (std::vector<Buffer<float>>* buffers : {&velocity_, &carried_}) {
    const std::vector<float> values = in.floats();
    if (!in.status()) return in.status();
    if (!values.empty() && values.size() != elements) {
      return Status::error(Code::kCorruptPayload, "checkpoint: momentum of tensor ", tensor,
                           ": wanted ", elements, " elements, got ", values.size());
    }
    (*buffers)[tensor] = Buffer<float>(values.size());
    std::ranges::copy(values, (*buffers)[tensor].span().begin());
  }
  return {};
}

Status Velocity::add_saved_carried(sync::ByteReader& in, std::span<float> out) {
  (void)in.floats();
  const std::vector<float> carried = in.floats();
  if (!in.status()) return in.status();
  if (!carried.empty() && carried.size() != out.size()) {
    return Status::error(Code::kCorruptPayload, "checkpoint: what momentum carries: wanted ",
                         out.size(), " elements, got ", carried.size());
  }
  if (!carried.empty()) kernels::add(out, carried);
  return {};
}

}  // namespace gradpress::engine
