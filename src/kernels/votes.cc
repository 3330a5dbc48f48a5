#include "kernels/votes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/votes.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/group-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

/// One word per lane, of the elements from `index` on.
HWY_INLINE VU words_from(const VoteWords& words, std::size_t index) {
  const DU d;
  const auto first = static_cast<std::uint32_t>(words.begin + index);
  return random_words(words.key, hn::Iota(d, first));
}

/// Sixteen elements; returns their bits. `fine` loses the lanes that are out of range.
HWY_INLINE std::uint32_t vote_bits(const float* g, std::size_t index, const VoteWords& words,
                                   VF bound, MF& fine) {
  const DF d;
  std::uint32_t bits = 0;
  for (std::size_t p = 0; p < kParts; ++p) {
    const VF raw = hn::LoadU(d, g + p * kLanes);
    const MF good = hn::Lt(hn::Abs(raw), bound);
    fine = hn::And(fine, good);
    const VF v = hn::IfThenElseZero(good, raw);
    const MF zero = hn::Eq(v, hn::Zero(d));
    MF negative = hn::Lt(v, hn::Zero(d));
    if (!hn::AllFalse(d, zero)) {
      const DU du;
      const VU flip = hn::Set(du, words.flip ? 1U : 0U);
      const VU lowest = hn::Xor(words_from(words, index + p * kLanes), flip);
      const VF moved = hn::BitCast(d, hn::ShiftLeft<31>(lowest));
      negative = hn::Or(negative, hn::And(zero, sign_mask(moved)));
    }
    bits |= mask_bits(negative) << (p * kLanes);
  }
  return bits;
}

bool encode_votes_kernel(const float* g, std::size_t n, float limit, const VoteWords& words,
                         std::uint8_t* bits) {
  const DF d;
  const VF bound = hn::Set(d, limit);
  MF fine = hn::Eq(bound, bound);
  std::size_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    ask_ahead(g + i);
    const auto packed = static_cast<std::uint16_t>(vote_bits(g + i, i, words, bound, fine));
    std::memcpy(bits + i / 8, &packed, sizeof packed);
  }
  if (i < n) {
    const std::size_t rest = n - i;
    const PaddedTail tail(g + i, rest);
    // The padding is zeros, which would vote.
    const std::uint32_t word =
        vote_bits(tail.values, i, words, bound, fine) & ((std::uint32_t{1} << rest) - 1);
    for (std::size_t byte = 0; byte * 8 < rest; ++byte) {
      bits[i / 8 + byte] = static_cast<std::uint8_t>(word >> (8 * byte));
    }
  }
  return hn::AllTrue(d, fine);
}

void add_casting_votes_kernel(float half, const VoteWords& words, float* dst, std::size_t n) {
  const DF d;
  const VF plus = hn::Set(d, half);
  const VF minus = hn::Neg(plus);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF word = hn::BitCast(d, words_from(words, i));
    hn::StoreU(hn::Add(hn::LoadU(d, dst + i), by_sign(word, minus, plus)), d, dst + i);
  }
  for (; i < n; ++i) {
    const std::uint32_t word = random_word(words.key, static_cast<std::uint32_t>(words.begin + i));
    dst[i] += (word >> 31) != 0 ? -half : half;
  }
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(encode_votes_kernel);
HWY_EXPORT(add_casting_votes_kernel);

bool encode_votes(std::span<const float> g, float limit, const VoteWords& words,
                  std::span<std::byte> bits) {
  return HWY_DYNAMIC_DISPATCH(encode_votes_kernel)(g.data(), g.size(), limit, words,
                                                   reinterpret_cast<std::uint8_t*>(bits.data()));
}
void add_casting_votes(float half, const VoteWords& words, std::span<float> dst) {
  HWY_DYNAMIC_DISPATCH(add_casting_votes_kernel)(half, words, dst.data(), dst.size());
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
