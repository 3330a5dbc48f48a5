#include "codec/state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/vector.h"

namespace gradpress::codec {

ResidualState::ResidualState(const StateOptions& options, bool feedback)
    : options_(options), feedback_(feedback) {
  for (Buffer<float>& version : stored_) version = Buffer<float>(feedback ? elements() : 0);
}

void ResidualState::materialise(std::span<float> out) const {
  if (!feedback_) {
    std::fill(out.begin(), out.end(), 0.0F);
    return;
  }
  if (!out.empty()) std::memcpy(out.data(), stored_[now_].data(), out.size_bytes());
  correct(0, out);
}

Status ResidualState::load(std::span<const float> residual) {
  if (residual.size() != elements()) {
    return Status::error(Code::kInvalidArgument, "a residual of ", residual.size(),
                         " elements was given to a state of shape ", shape().to_string(), " (",
                         elements(), " elements)");
  }
  if (kernels::first_out_of_range(residual, kGradientLimit) != kernels::kAllInRange) {
    return non_finite("residual", residual);
  }
  commit();
  if (!feedback_) return {};
  if (!residual.empty()) std::memcpy(stored().data(), residual.data(), residual.size_bytes());
  clear_correction();
  return {};
}

void ResidualState::scale(float factor) {
  commit();
  kernels::scale(stored(), factor);
  scale_correction(factor);
}

double ResidualState::norm() const {
  std::array<float, 4096> block;
  double squares = 0.0;
  const std::span<const float> stored = stored_[now_].span();
  for (std::size_t begin = 0; begin < stored.size(); begin += block.size()) {
    const std::span<float> values(block.data(), std::min(block.size(), stored.size() - begin));
    std::memcpy(values.data(), stored.data() + begin, values.size_bytes());
    correct(begin, values);
    squares += kernels::sum_squares(values);
  }
  return std::sqrt(squares);
}

Status ResidualState::load_extras(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  return Status::error(Code::kCorruptPayload, "this codec keeps nothing beside its residual, got ",
                       bytes.size(), " B: were they saved by another codec?");
}

void ResidualState::settle() {
  correct(0, stored());
  clear_correction();
}

void ResidualState::renewed() {
  if (feedback_) kernels::flush_stores();
  now_ = next();
  is_renewed_ = true;
}

void ResidualState::rewind() {
  if (is_renewed_) now_ = next();
  is_renewed_ = false;
}

void ResidualState::correct(std::uint64_t /*begin*/, std::span<float> /*values*/) const {}
void ResidualState::scale_correction(float /*factor*/) {}
void ResidualState::clear_correction() {}

Status non_finite(const std::string& codec, std::span<const float> grad) {
  const std::size_t at = kernels::first_out_of_range(grad, kGradientLimit);
  if (at == kernels::kAllInRange) {
    return Status::error(Code::kInternal, codec, ": reported a non-finite element, found none");
  }
  return Status::error(Code::kNonFinite, codec, ": element ", at, " of ", grad.size(), " is ",
                       grad[at], ", wanted a finite value below ", kGradientLimit,
                       " in magnitude; the residual was left as it was");
}

}  // namespace gradpress::codec
