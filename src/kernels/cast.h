// Floats to 16 bits and back, rounded to nearest even on every target.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/feedback.h"

namespace gradpress::kernels {

/// In ONE pass: writes x as IEEE binary16, saturated at ±65504, and keeps the rounding error in the
/// residual. Returns whether every element of g was in range.
/// Requires: out.size() == 2 · n, at any alignment.
bool encode_fp16(const FeedbackPass& pass, std::span<std::byte> out);
/// The same in bfloat16. Requires beside: |x| below 2^127, as no saturation is done.
bool encode_bf16(const FeedbackPass& pass, std::span<std::byte> out);

/// dst += weight · value. Returns whether all values were finite; those that are not are skipped.
/// Requires: in.size() == 2 · dst.size(), at any alignment.
bool add_fp16(std::span<const std::byte> in, float weight, std::span<float> dst);
bool add_bf16(std::span<const std::byte> in, float weight, std::span<float> dst);

}  // namespace gradpress::kernels
