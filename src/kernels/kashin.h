// Quantisation in a random orthogonal frame: random signs, then the Walsh-Hadamard transform, so
// that a block's coefficients are all about as large as its norm / √1024, whatever the block.
// Layout and formulas: docs/wire_format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/feedback.h"
#include "kernels/random.h"

namespace gradpress::kernels {

/// Elements of one frame. A shorter last block is padded with zeros to a power of two, at least 16.
inline constexpr std::size_t kFrameElems = 1024;

/// Coefficients of the last block of `elements`, which are at most kFrameElems.
constexpr std::size_t frame_length(std::size_t elements) {
  std::size_t length = 16;
  while (length < elements) length *= 2;
  return length;
}

struct FrameKeys {
  RandomKey frame = {};     ///< the signs: the same for encode and decode
  RandomKey rounding = {};  ///< the encode's own
};

/// Per block the largest coefficient as f32, then a code of `bits` bits per coefficient. Returns
/// whether all of g was in range; the payload is then still one that add_frames takes.
/// Requires: bits is 2, 4 or 8; out.size() == 4 + frame_length · bits / 8, summed over the blocks.
bool encode_frames(const FeedbackPass& pass, const FrameKeys& keys, unsigned bits,
                   std::span<std::byte> out);

/// dst += weight · what the payload stands for. Returns false, with the blocks before it added, at
/// a largest coefficient that is not from 0 to below 2^100.
/// Requires: sizes as in encode_frames.
bool add_frames(std::span<const std::byte> in, RandomKey frame, unsigned bits, float weight,
                std::span<float> dst);

}  // namespace gradpress::kernels
