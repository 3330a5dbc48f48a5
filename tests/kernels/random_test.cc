#include "kernels/random.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <vector>

#include "support/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/random_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/feedback-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

/// Words and uniforms of the indices from `first` on. Requires: n is a multiple of kGroup.
void fill_random(RandomKey key, std::size_t first, std::size_t n, std::uint32_t* words,
                 float* uniforms) {
  const RandomStream random(key);
  for (std::size_t i = 0; i < n; i += kGroup) {
    VU word[kParts];
    VF uniform[kParts];
    random.words(first + i, word);
    random.uniforms(first + i, uniform);
    for (std::size_t p = 0; p < kParts; ++p) {
      hn::StoreU(word[p], DU(), words + i + p * kLanes);
      hn::StoreU(uniform[p], DF(), uniforms + i + p * kLanes);
    }
  }
}

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {
HWY_EXPORT(fill_random);
namespace {

// From another implementation of the formulas in docs/wire_format.md.
static_assert(mix64(0) == 0xE220A8397B1DCDAFU);
static_assert(mix64(1) == 0x910A2DEC89025CC1U);

class Random : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(Random);

TEST_P(Random, VectorWordsAreTheScalarWordsAlsoNearTheLastIndex) {
  const RandomKey key = random_key({.seed = 1, .tensor = 2, .step = 3, .site = 4, .shard = 5});
  for (const std::size_t first : {std::size_t{0}, std::size_t{12'345}, std::size_t{0xFFFFFF80}}) {
    std::vector<std::uint32_t> words(128);
    std::vector<float> uniforms(128);
    HWY_DYNAMIC_DISPATCH(fill_random)(key, first, words.size(), words.data(), uniforms.data());
    for (std::size_t i = 0; i < words.size(); ++i) {
      const std::uint32_t word = random_word(key, static_cast<std::uint32_t>(first + i));
      ASSERT_EQ(words[i], word) << first + i;
      ASSERT_EQ(uniforms[i], static_cast<float>(word >> 8) / 16777216.0F);
      ASSERT_LT(uniforms[i], 1.0F);
    }
  }
}

TEST(RandomKeys, DependOnEveryPartOfTheOrigin) {
  const RandomOrigin origin{.seed = 7, .tensor = 7, .step = 7, .site = 7, .shard = 7};
  std::set<std::uint64_t> keys;
  const auto note = [&keys](const RandomOrigin& from) {
    const RandomKey key = random_key(from);
    keys.insert((std::uint64_t{key.high} << 32) | key.low);
  };
  note(origin);
  for (auto part : {&RandomOrigin::seed, &RandomOrigin::tensor, &RandomOrigin::step,
                    &RandomOrigin::site, &RandomOrigin::shard}) {
    RandomOrigin other = origin;
    other.*part = 8;
    note(other);
  }
  EXPECT_EQ(keys.size(), 6U);
}

TEST(RandomWords, HaveEvenBitsAndNoTwoStepsAlike) {
  constexpr std::uint32_t kDraws = 1 << 16;
  const RandomKey one = random_key({.step = 1});
  const RandomKey two = random_key({.step = 2});
  std::vector<std::uint32_t> set_bits(32);
  std::uint32_t differing = 0;
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    const std::uint32_t word = random_word(one, i);
    for (unsigned bit = 0; bit < 32; ++bit) set_bits[bit] += (word >> bit) & 1U;
    differing += static_cast<std::uint32_t>(std::popcount(word ^ random_word(two, i)));
  }
  // Six standard deviations of a fair coin.
  for (const std::uint32_t count : set_bits) EXPECT_NEAR(count, 0.5 * kDraws, 6 * 128);
  EXPECT_NEAR(differing, 16.0 * kDraws, 6 * 725);
}

}  // namespace
}  // namespace gradpress::kernels
#endif  // HWY_ONCE
