#include "kernels/rice.h"

#include <bit>
#include <cstring>

namespace gradpress::kernels {

namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

/// The word at byte `at`, with zeros for what is behind the end.
std::uint64_t word_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t word = 0;
  if (at + kWord <= bytes.size()) {
    std::memcpy(&word, bytes.data() + at, kWord);
  } else if (at < bytes.size()) {
    std::memcpy(&word, bytes.data() + at, bytes.size() - at);
  }
  return word;
}

/// Writes words one after the other, cut where the bytes end.
void put_word(std::span<std::byte> bytes, std::size_t at, std::uint64_t word) {
  if (at + kWord <= bytes.size()) {
    std::memcpy(bytes.data() + at, &word, kWord);
  } else if (at < bytes.size()) {
    std::memcpy(bytes.data() + at, &word, bytes.size() - at);
  }
}

}  // namespace

std::size_t rice_write(std::span<const std::uint32_t> indices, unsigned bits,
                       std::span<std::byte> low, std::span<std::byte> high) {
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  std::uint64_t low_word = 0;
  unsigned low_filled = 0;
  std::size_t low_at = 0;
  std::uint64_t high_word = 0;
  std::uint64_t high_begin = 0;  // the word's first bit
  std::uint64_t high_bit = 0;
  std::uint32_t before = ~std::uint32_t{0};
  for (const std::uint32_t index : indices) {
    const std::uint64_t gap = index - before - 1;
    before = index;
    low_word |= (gap & mask) << low_filled;
    low_filled += bits;
    if (low_filled >= 64) {
      put_word(low, low_at, low_word);
      low_at += kWord;
      low_filled -= 64;
      low_word = (gap & mask) >> (bits - low_filled);
    }
    high_bit += gap >> bits;
    while (high_bit >= high_begin + 64) {
      put_word(high, high_begin / 8, high_word);
      high_word = 0;
      high_begin += 64;
    }
    high_word |= std::uint64_t{1} << (high_bit - high_begin);
    ++high_bit;
  }
  put_word(low, low_at, low_word);
  put_word(high, high_begin / 8, high_word);
  return static_cast<std::size_t>((high_bit + 7) / 8);
}

bool RiceReader::read(std::span<std::uint64_t> out) {
  // The low bits first: their loop has no branch that the data decides.
  const std::uint64_t mask = (std::uint64_t{1} << bits_) - 1;
  std::uint64_t low_bit = entry_ * bits_;
  for (std::uint64_t& index : out) {
    low_sum_ += word_at(low_, low_bit / 8) >> (low_bit % 8) & mask;
    low_bit += bits_;
    index = low_sum_;
  }
  for (std::uint64_t& index : out) {
    while (word_ == 0) {
      if (next_word_ >= high_.size()) return false;
      word_ = word_at(high_, next_word_);
      next_word_ += kWord;
    }
    const std::uint64_t bit =
        8 * (next_word_ - kWord) + static_cast<unsigned>(std::countr_zero(word_));
    word_ &= word_ - 1;
    // Of the bits before this one, `entry_` are the ones of earlier entries.
    index += entry_ + ((bit - entry_) << bits_);
    ++entry_;
    end_bit_ = bit + 1;
  }
  return true;
}

bool RiceReader::at_end() const { return word_ == 0 && (end_bit_ + 7) / 8 == high_.size(); }

}  // namespace gradpress::kernels
