// Workers of one tensor in one process, for tests of codecs whose states must agree.
#pragma once

#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/gradient.h"

namespace gradpress::test {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

inline std::unique_ptr<const Codec> codec_of(const std::string& text) {
  auto codec = make_codec(text);
  EXPECT_TRUE(codec.has_value()) << codec.error().to_string();
  return std::move(*codec);
}

inline std::unique_ptr<State> state_of(const Codec& codec, const StateOptions& options) {
  auto state = codec.make_state(options);
  EXPECT_TRUE(state.has_value()) << state.error().to_string();
  return std::move(*state);
}

inline Floats residual(const State& state) {
  Floats out(state.shape().elements());
  state.materialise(out);
  return out;
}

inline Bytes sum(const std::vector<Bytes>& payloads) {
  Bytes total = payloads.front();
  for (std::size_t w = 1; w < payloads.size(); ++w) {
    for (std::size_t at = 0; at < total.size(); at += sizeof(float)) {
      float a, b;
      std::memcpy(&a, &total[at], sizeof a);
      std::memcpy(&b, &payloads[w][at], sizeof b);
      a += b;
      std::memcpy(&total[at], &a, sizeof a);
    }
  }
  return total;
}

/// Workers of one tensor, each with a state of its own.
class Cluster {
 public:
  enum class Exchange { kSummed, kEach };

  Cluster(const std::string& text, const Shape& shape, std::size_t workers,
          Exchange exchange = Exchange::kSummed)
      : codec_(codec_of(text)), exchange_(exchange) {
    for (std::size_t w = 0; w < workers; ++w) {
      states_.push_back(
          state_of(*codec_, {.shape = shape, .seed = 11, .tensor = 3, .feedback = {}}));
    }
  }

  /// One step; returns what every worker applies, and expects it to be the same bits on all.
  Floats step(const std::vector<Floats>& grads) {
    std::vector<Bytes> payloads(states_.size());
    Bytes reduced;
    for (unsigned round = 0; round < codec_->traits().rounds; ++round) {
      for (std::size_t w = 0; w < states_.size(); ++w) {
        payloads[w].resize(codec_->payload_bound(states_[w]->shape(), round));
        const auto used = codec_->encode(
            *states_[w], {.grad = grads[w], .step = step_, .round = round, .reduced = reduced},
            payloads[w]);
        EXPECT_TRUE(used.has_value()) << used.error().to_string();
        payloads[w].resize(used.value_or(0));
      }
      reduced = sum(payloads);
    }
    const auto workers = static_cast<std::uint32_t>(states_.size());
    Floats applied;
    for (std::size_t w = 0; w < states_.size(); ++w) {
      Floats dst(grads[w].size(), 0.0F);
      const auto decode = [&](const Bytes& payload) {
        const Status status = codec_->decode(
            *states_[w], {.payload = payload, .step = step_, .weight = 1.0F / float(workers)}, dst);
        EXPECT_TRUE(status.is_ok()) << status.to_string();
      };
      if (exchange_ == Exchange::kSummed) {
        decode(reduced);
      } else {
        for (const Bytes& payload : payloads) decode(payload);
      }
      const Status status = codec_->finish(*states_[w], workers, dst);
      EXPECT_TRUE(status.is_ok()) << status.to_string();
      if (w == 0) applied = dst;
      EXPECT_TRUE(
          std::ranges::equal(std::as_bytes(std::span(applied)), std::as_bytes(std::span(dst))))
          << "worker " << w << " applies another gradient in step " << step_;
      EXPECT_EQ(states_[w]->save_extras(), states_[0]->save_extras())
          << "worker " << w << " has other factors after step " << step_;
    }
    ++step_;
    return applied;
  }

  State& state(std::size_t w) { return *states_[w]; }
  std::size_t size() const { return states_.size(); }
  const Codec& codec() const { return *codec_; }

 private:
  std::unique_ptr<const Codec> codec_;
  Exchange exchange_;
  std::vector<std::unique_ptr<State>> states_;
  std::uint64_t step_ = 0;
};

inline std::vector<Floats> gradients(std::size_t workers, std::size_t elements,
                                     std::uint64_t seed) {
  std::vector<Floats> grads;
  for (std::size_t w = 0; w < workers; ++w) {
    grads.push_back(test::gradient(elements, 1000 * seed + w));
  }
  return grads;
}

inline double norm(const Floats& values) {
  double squares = 0.0;
  for (const float v : values) squares += double(v) * double(v);
  return std::sqrt(squares);
}

}  // namespace gradpress::test
