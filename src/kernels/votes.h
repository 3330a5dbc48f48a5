// One bit per element for a majority vote: its sign, and where there is none, a random bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/random.h"

namespace gradpress::kernels {

/// Where an element's random word comes from: random_word(key, begin + its index).
struct VoteWords {
  RandomKey key = {};
  std::uint32_t begin = 0;
  bool flip = false;  ///< zeros vote the opposite of their word's lowest bit
};

/// The sign bit of each element (1 = negative), lowest bit first; of a zero the lowest bit of its
/// word, flipped if asked. Elements that are NaN or of magnitude `limit` and above count as zeros.
/// Returns whether there were none of those.
///
/// Requires: bits.size() == ⌈n/8⌉ (bits past n are cleared).
bool encode_votes(std::span<const float> g, float limit, const VoteWords& words,
                  std::span<std::byte> bits);

/// dst += half where the highest bit of the element's word is 0, dst −= half where it is 1.
/// `words.flip` means nothing here.
void add_casting_votes(float half, const VoteWords& words, std::span<float> dst);

}  // namespace gradpress::kernels
