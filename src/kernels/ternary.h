// terngrad: each element becomes −scale, 0 or +scale by its random word; two bits per element.
// Layout and formulas: docs/wire_format.md.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/feedback.h"
#include "kernels/random.h"

namespace gradpress::kernels {

struct Spread {
  double sigma = 0.0;    ///< population standard deviation of x; exactly 0 when all are equal
  float peak = 0.0F;     ///< the largest |x|
  bool in_range = true;  ///< of every element of g
};

/// Measures x in one reading pass.
Spread measure_spread(const FeedbackPass& pass);

/// Writes the kept and sign bits of x; the residual becomes x − value. Requires: out.size() ==
/// ⌈n/4⌉.
void encode_ternary(const FeedbackPass& pass, RandomKey key, float scale, std::span<std::byte> out);

/// dst += weight · value. Requires: in.size() == ⌈dst.size()/4⌉.
void add_ternary(std::span<const std::byte> in, float scale, float weight, std::span<float> dst);

}  // namespace gradpress::kernels
