// One sparsifier with one state, and what its payloads ought to be.
#pragma once

#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include "spec/spec.h"

namespace gradpress::test {

using Bytes = std::vector<std::byte>;
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <class T>
T word(std::span<const std::byte> bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
  return value;
}

/// One codec with one state, and what a step of it does.
class Site {
 public:
  Site(std::string_view text, const StateOptions& options)
      : codec_(std::move(make_codec(text).value())),
        state_(std::move(codec_->make_state(options).value())) {}
  Site(std::string_view text, std::size_t n)
      : Site(text, StateOptions{.shape = Shape::flat(n), .feedback = {}}) {}

  const Codec& codec() const { return *codec_; }
  State& state() { return *state_; }
  std::size_t elements() const { return state_->shape().elements(); }

  Status try_encode(std::span<const float> g, std::uint32_t shards = 1) {
    payloads_.assign(shards, {});
    Bytes out(codec_->encode_bound(state_->shape(), shards));
    std::vector<std::size_t> sizes(shards);
    const auto used = codec_->encode(
        *state_, {.grad = g, .shards = shards, .step = step_, .reduced = {}}, out, sizes);
    if (!used) return used.error();
    EXPECT_EQ(*used, std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}));
    auto from = out.begin();
    for (std::uint32_t i = 0; i < shards; ++i) {
      payloads_[i].assign(from, from + static_cast<long>(sizes[i]));
      from += static_cast<long>(sizes[i]);
    }
    return {};
  }
  /// One step; returns the first shard's payload.
  const Bytes& encode(std::span<const float> g, std::uint32_t shards = 1) {
    const Status status = try_encode(g, shards);
    EXPECT_TRUE(status.is_ok()) << status.to_string();
    ++step_;
    return payloads_[0];
  }
  Status decode(std::span<const std::byte> payload, std::span<float> dst, std::uint32_t shard = 0,
                float weight = 1.0F) {
    return codec_->decode(
        *state_, {.payload = payload, .shard = shard, .step = step_ - 1, .weight = weight}, dst);
  }
  /// What the last step's payloads say.
  std::vector<float> decoded() {
    std::vector<float> dst(elements());
    const auto shards = static_cast<std::uint32_t>(payloads_.size());
    for (std::uint32_t i = 0; i < shards; ++i) {
      const ShardRange range = shard_range(elements(), shards, i);
      const Status status =
          decode(payloads_[i], std::span(dst).subspan(range.begin, range.count), i);
      EXPECT_TRUE(status.is_ok()) << status.to_string();
    }
    return dst;
  }
  std::vector<float> residual() {
    std::vector<float> out(elements());
    state_->materialise(out);
    return out;
  }

 private:
  std::unique_ptr<const Codec> codec_;
  std::unique_ptr<State> state_;
  std::vector<Bytes> payloads_;
  std::uint64_t step_ = 0;
};

inline std::vector<std::uint32_t> by_magnitude(const std::vector<float>& x) {
  std::vector<std::uint32_t> order(x.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order,
                           [&](auto a, auto b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  return order;
}

/// The payload of the c elements of x that are first by (larger magnitude, smaller index).
inline Bytes pairs_of_largest(const std::vector<float>& x, std::size_t c) {
  auto order = by_magnitude(x);
  order.resize(c);
  std::ranges::sort(order);
  Bytes bytes(8 * c);
  for (std::size_t i = 0; i < c; ++i) {
    std::memcpy(bytes.data() + 4 * i, &order[i], 4);
    std::memcpy(bytes.data() + 4 * (c + i), &x[order[i]], 4);
  }
  return bytes;
}

inline std::vector<float> sum(std::vector<float> a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

inline std::size_t kept(std::string_view text, std::size_t n) {
  return codec::kept_elements(codec::parse_spec(text).value(), n);
}

}  // namespace gradpress::test
