#include "kernels/rice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "support/group.h"

namespace gradpress::kernels {
namespace {

using Indices = std::vector<std::uint32_t>;

/// `count` of `elements`, every set as likely as any other.
Indices random_set(std::uint64_t elements, std::uint64_t count, std::mt19937_64& random) {
  Indices set;
  std::uint64_t wanted = count;
  for (std::uint64_t i = 0; i < elements && wanted > 0; ++i) {
    if (random() % (elements - i) < wanted) {
      set.push_back(static_cast<std::uint32_t>(i));
      --wanted;
    }
  }
  return set;
}

struct Streams {
  std::vector<std::byte> low;
  std::vector<std::byte> high;
};

/// Bit by bit, from the definition.
Streams by_definition(const Indices& indices, unsigned bits) {
  std::string low;
  std::string high;
  std::uint64_t next = 0;
  for (const std::uint32_t index : indices) {
    const std::uint64_t gap = index - next;
    next = std::uint64_t{index} + 1;
    for (unsigned bit = 0; bit < bits; ++bit) low += (gap >> bit & 1U) != 0 ? '1' : '0';
    high += std::string(gap >> bits, '0') + '1';
  }
  const auto packed = [](const std::string& text) {
    std::vector<std::byte> bytes((text.size() + 7) / 8);
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '1') bytes[i / 8] |= std::byte{1} << (i % 8);
    }
    return bytes;
  };
  return {packed(low), packed(high)};
}

Streams written(const Indices& indices, std::uint64_t elements, unsigned bits) {
  Streams streams{
      std::vector<std::byte>(rice_low_bytes(indices.size(), bits), std::byte{0xEE}),
      std::vector<std::byte>(rice_high_bound(indices.size(), elements, bits), std::byte{0xEE})};
  streams.high.resize(rice_write(indices, bits, streams.low, streams.high));
  return streams;
}

/// In pieces of `piece` entries; empty when the reader refuses.
std::vector<std::uint64_t> read_back(const Streams& streams, std::size_t count, unsigned bits,
                                     std::size_t piece) {
  RiceReader reader(streams.low, streams.high, bits);
  std::vector<std::uint64_t> all(count);
  for (std::size_t begin = 0; begin < count; begin += piece) {
    if (!reader.read(std::span(all).subspan(begin, std::min(piece, count - begin)))) return {};
  }
  return reader.at_end() ? all : std::vector<std::uint64_t>();
}

TEST(Rice, StreamsAreThoseOfTheDefinitionAndReadBackInPiecesOfAnySize) {
  const std::uint64_t seed = test::run_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (const std::uint64_t elements : {1ULL, 2ULL, 63ULL, 64ULL, 65ULL, 1000ULL, 4096ULL}) {
    for (std::uint64_t count = 1; count <= elements; count = count * 3 / 2 + 1) {
      const Indices indices = random_set(elements, count, random);
      for (const unsigned bits : {0U, 1U, 2U, 5U, 8U, 13U, 31U}) {
        const Streams streams = written(indices, elements, bits);
        const Streams wanted = by_definition(indices, bits);
        ASSERT_EQ(streams.low, wanted.low) << elements << " " << count << " " << bits;
        ASSERT_EQ(streams.high, wanted.high) << elements << " " << count << " " << bits;
        ASSERT_NE(streams.high.back(), std::byte{0});
        for (const std::size_t piece : {1U, 7U, 256U}) {
          const auto back = read_back(streams, count, bits, piece);
          ASSERT_TRUE(std::ranges::equal(back, indices)) << elements << " " << count << " " << bits;
        }
      }
    }
  }
}

TEST(Rice, TheLargestIndicesThereAreSurvive) {
  constexpr std::uint64_t kElements = (std::uint64_t{1} << 32) - 1;
  for (const Indices& indices : {Indices{4294967294U}, Indices{0, 4294967294U},
                                 Indices{4294967293U, 4294967294U}, Indices{0, 1, 2}}) {
    for (const unsigned bits : {20U, 27U, 31U}) {
      const Streams streams = written(indices, kElements, bits);
      EXPECT_TRUE(std::ranges::equal(read_back(streams, indices.size(), bits, 4), indices));
    }
  }
}

TEST(Rice, StreamsThatEndTooEarlyOrTooLateAreRefused) {
  std::mt19937_64 random(5);
  const Indices indices = random_set(1000, 40, random);
  const Streams streams = written(indices, 1000, 4);
  Streams cut = streams;
  cut.high.pop_back();
  EXPECT_TRUE(read_back(cut, indices.size(), 4, 7).empty());
  Streams longer = streams;
  longer.high.push_back(std::byte{0});
  EXPECT_TRUE(read_back(longer, indices.size(), 4, 7).empty()) << "a byte behind the last entry";
  Streams more = streams;
  more.high.push_back(std::byte{1});
  EXPECT_TRUE(read_back(more, indices.size(), 4, 7).empty()) << "an entry that is not counted";
}

TEST(Rice, WhateverTheBytesIndicesAscendAndNothingOutsideIsRead) {
  const std::uint64_t seed = test::run_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int turn = 0; turn < 2000; ++turn) {
    const std::uint64_t elements = 1 + random() % 300;
    const std::uint64_t count = 1 + random() % elements;
    const auto bits = static_cast<unsigned>(random() % 9);
    // Allocations of exactly these lengths: a sanitizer sees one byte too far.
    Streams streams{
        std::vector<std::byte>(rice_low_bytes(count, bits)),
        std::vector<std::byte>(random() % (rice_high_bound(count, elements, bits) + 1))};
    for (auto* stream : {&streams.low, &streams.high}) {
      for (std::byte& byte : *stream) byte = static_cast<std::byte>(random());
    }
    const auto back = read_back(streams, count, bits, 16);
    ASSERT_TRUE(std::ranges::adjacent_find(back, std::greater_equal()) == back.end());
  }
}

}  // namespace
}  // namespace gradpress::kernels
