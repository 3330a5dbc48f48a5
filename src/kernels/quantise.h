// One to eight bits per element: codes against a scale per block, and powers of two.
// Layouts and formulas: docs/wire_format.md.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/feedback.h"
#include "kernels/random.h"

namespace gradpress::kernels {

/// Where an encode writes a payload of scales and codes, both at any alignment.
/// Requires, for n elements: scales.size() == 4 · ⌈n/block⌉, codes.size() == ⌈n · bits/8⌉.
struct BlockPayload {
  std::span<std::byte> scales;
  std::span<std::byte> codes;
  std::size_t block;
};

/// int8: nearest of 255 levels up to the block's largest magnitude. Returns whether all of g was in
/// range. Cost: one pass over memory as long as a block of gradient and residual fits the cache.
bool encode_int8(const FeedbackPass& pass, const BlockPayload& out);

/// qsgd: one of the two neighbouring levels of the block's norm, by the element's random word.
/// Requires: bits is 2, 4 or 8. Cost: as encode_int8.
bool encode_qsgd(const FeedbackPass& pass, RandomKey key, unsigned bits, const BlockPayload& out);

/// natural: one of the two neighbouring powers of two. Requires: out.size() == n.
bool encode_natural(const FeedbackPass& pass, RandomKey key, std::span<std::byte> out);

/// A payload of encode_int8 (bits 8, scale_divisor 1) or encode_qsgd (scale_divisor 2^(bits−1) −
/// 1).
struct BlockCodes {
  std::span<const std::byte> scales;
  std::span<const std::byte> codes;
  std::size_t block;
  unsigned bits;
  float scale_divisor;
};

/// dst += weight · code · (scale / scale_divisor). Returns false, with the blocks before it added,
/// at a scale that could make a code's value infinite or NaN. Sizes as in BlockPayload.
bool add_block_codes(const BlockCodes& in, float weight, std::span<float> dst);

/// dst += weight · (the power of two of each byte). Requires: in.size() == dst.size().
void add_natural(std::span<const std::byte> in, float weight, std::span<float> dst);

}  // namespace gradpress::kernels
