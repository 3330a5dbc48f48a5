#include "codec_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels/random.h"
#include "kernels/vector.h"

namespace gradpress::cli {

namespace {

template <class Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A square-like matrix of about this many elements: low-rank codecs need two dimensions.
Shape bench_shape(std::size_t elements) {
  std::uint64_t rows = 1;
  while (4 * rows * rows <= elements) rows *= 2;
  return Shape{rows, std::max<std::uint64_t>(1, elements / rows)};
}

/// Heavy-tailed values, different for every seed: a near-normal divided by a squared uniform.
std::vector<float> heavy_tailed(std::size_t elements, std::uint64_t seed) {
  const kernels::RandomKey key = kernels::random_key({.seed = seed});
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    const std::uint32_t a = kernels::random_word(key, static_cast<std::uint32_t>(2 * i));
    const std::uint32_t b = kernels::random_word(key, static_cast<std::uint32_t>(2 * i + 1));
    const auto bits = [](std::uint32_t word, int from) {
      return static_cast<float>((word >> from) & 0xFFU) * 0x1.0p-8F;
    };
    const float normal = bits(a, 0) + bits(a, 8) + bits(a, 16) + bits(a, 24) - 2.0F +
                         static_cast<float>(b & 0xFFFU) * 0x1.0p-20F;
    const float uniform = static_cast<float>(b >> 8) * 0x1.0p-24F + 0.02F;
    values[i] = 0.01F * normal / (uniform * uniform);
  }
  return values;
}

/// One codec on one gradient size: state, buffers, and the two calls that are timed.
class Step {
 public:
  Step(const Codec& codec, const Shape& shape, std::unique_ptr<State> state)
      : codec_(codec),
        state_(std::move(state)),
        first_(codec.encode_bound(shape, 1, 0)),
        second_(codec.traits().rounds > 1 ? codec.encode_bound(shape, 1, 1) : 0),
        sum_(shape.elements()) {}

  /// All rounds of one step's encode; the payload is alone, so it is its own sum over workers.
  Status encode(std::span<const float> grad) {
    EncodeArgs args{.grad = grad, .step = ++step_};
    auto bytes = codec_.encode(*state_, args, first_);
    if (!bytes) return bytes.error();
    payload_ = std::span(first_).first(*bytes);
    payload_bytes_ = *bytes;
    if (codec_.traits().rounds > 1) {
      args.round = 1;
      args.reduced = payload_;
      bytes = codec_.encode(*state_, args, second_);
      if (!bytes) return bytes.error();
      payload_ = std::span(second_).first(*bytes);
      payload_bytes_ += *bytes;
    }
    return {};
  }

  Status decode() {
    decoded_ = true;
    return codec_.decode(*state_, {.payload = payload_, .step = step_}, sum_);
  }

  /// Brings the step that was last encoded to its end, so that the next can begin.
  Status finish_after_decode() {
    if (!decoded_) {
      const Status status = decode();
      if (!status.is_ok()) return status;
    }
    return finish();
  }

  /// Outside the timed parts: what ends a step. The vote would overwrite the running sum.
  Status finish() {
    decoded_ = false;
    if (codec_.traits().combine == Combine::kVote) return {};
    return codec_.finish(*state_, 1, sum_);
  }

  std::span<float> sum() { return sum_; }
  State& state() { return *state_; }
  std::size_t payload_bytes() const { return payload_bytes_; }

 private:
  const Codec& codec_;
  std::unique_ptr<State> state_;
  std::vector<std::byte> first_;
  std::vector<std::byte> second_;
  std::vector<float> sum_;
  std::span<const std::byte> payload_;
  std::size_t payload_bytes_ = 0;
  std::uint64_t step_ = 0;
  bool decoded_ = false;
};

Spread divided(const Spread& spread, double unit) {
  return {.median = spread.median / unit, .least = spread.least / unit, .most = spread.most / unit};
}

/// Two steps and what they must satisfy, before anything is timed: with feedback, decoded +
/// residual = gradients; without, an error the codec's own declaration allows.
Status verify(const Codec& codec, Step& step, const std::vector<std::vector<float>>& gradients) {
  const std::size_t n = gradients[0].size();
  std::vector<float> expected(n);
  for (std::size_t i = 0; i < 2; ++i) {
    Status status = step.encode(gradients[i]);
    if (status.is_ok()) status = step.decode();
    if (status.is_ok()) status = step.finish();
    if (!status.is_ok()) return status;
    kernels::add(expected, gradients[i]);
  }
  std::vector<float> error(n);
  step.state().materialise(error);
  double allowed = 1e-5;
  if (codec.traits().combine == Combine::kVote) {
    // Two gradients of one sign have two votes of that sign, also in the mean over time. Zeros vote
    // at random.
    for (std::size_t i = 0; i < n; ++i) {
      const float first = gradients[0][i];
      const float second = gradients[1][i];
      const bool decided = first != 0.0F && second != 0.0F && (first < 0.0F) == (second < 0.0F);
      const float want = first < 0.0F ? -2.0F : 2.0F;
      if (decided && step.sum()[i] != want) {
        return Status::error(Code::kInternal, codec.name(), ": element ", i, " decoded to ",
                             step.sum()[i], ", wanted ", want);
      }
    }
    return {};
  }
  if (!step.state().has_feedback()) {
    const auto variance = codec.variance(Shape::flat(n));
    const auto contraction = codec.contraction(Shape::flat(n));
    const double square = variance ? *variance : contraction ? 1.0 - *contraction : 1.0;
    allowed = std::sqrt(square) * 1.05 + 1e-5;
  }
  double wrong = 0.0;
  double total = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    const double miss = static_cast<double>(expected[i]) - static_cast<double>(step.sum()[i]) -
                        static_cast<double>(error[i]);
    wrong += miss * miss;
    total += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  if (std::sqrt(wrong) <= allowed * std::sqrt(total)) return {};
  return Status::error(Code::kInternal, codec.name(),
                       ": decoded + residual misses the gradients by ", std::sqrt(wrong / total),
                       " of their norm, allowed are ", allowed);
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {.median = values[values.size() / 2], .least = values.front(), .most = values.back()};
}

CodecTimer::CodecTimer(std::size_t elements) : elements_(elements), copy_(elements) {
  for (std::size_t i = 0; i < kGradients; ++i) gradients_.push_back(heavy_tailed(elements, i + 1));
}

double CodecTimer::copy_seconds(std::size_t turn) {
  // Not the gradient that is encoded next: the copy would warm its cache lines.
  const std::vector<float>& from = gradients_[(turn + kGradients / 2) % kGradients];
  const double seconds = seconds_of([&] {
    std::memcpy(copy_.data(), from.data(), elements_ * sizeof(float));
    // The compiler must not know that nobody reads the copy.
    asm volatile("" : : "r"(copy_.data()) : "memory");
  });
  copies_.push_back(seconds);
  return seconds;
}

Spread CodecTimer::memcpy_gbs() const {
  const Spread seconds = spread_of(copies_);
  const double gigabytes = static_cast<double>(elements_ * sizeof(float)) * 1e-9;
  return {.median = gigabytes / seconds.median,
          .least = gigabytes / seconds.most,
          .most = gigabytes / seconds.least};
}

Spread CodecTimer::in_copies(const Turns& turns, const std::function<void(std::size_t)>& work) {
  std::vector<double> copies;
  std::vector<double> works;
  for (std::size_t turn = 0; turn < turns.timed + turns.warmup; ++turn) {
    const double copy = copy_seconds(turn);
    const double seconds = seconds_of([&] { work(turn); });
    if (turn < turns.warmup) continue;
    copies.push_back(copy);
    works.push_back(seconds);
  }
  return divided(spread_of(works), spread_of(copies).median);
}

Spread CodecTimer::update_pass(const Turns& turns) {
  std::vector<float> sum(elements_);
  return in_copies(turns,
                   [&](std::size_t turn) { kernels::add(sum, gradients_[turn % kGradients]); });
}

Spread CodecTimer::nth_element(const Turns& turns, std::size_t kept) {
  std::vector<float> magnitudes(elements_);
  return in_copies(turns, [&](std::size_t turn) {
    const std::vector<float>& from = gradients_[turn % kGradients];
    for (std::size_t i = 0; i < elements_; ++i) magnitudes[i] = std::fabs(from[i]);
    std::nth_element(magnitudes.begin(), magnitudes.begin() + static_cast<std::ptrdiff_t>(kept),
                     magnitudes.end(), std::greater<>());
  });
}

Result<CodecCost> CodecTimer::cost(const Codec& codec, const Turns& turns) {
  const Shape shape = bench_shape(elements_);
  const StateOptions options{.shape = shape};
  auto state = codec.make_state(options);
  if (!state) return tl::unexpected(state.error());
  {
    Step verified(codec, shape, std::move(*state));
    const Status status = verify(codec, verified, gradients_);
    if (!status.is_ok()) return tl::unexpected(status);
  }
  state = codec.make_state(options);
  if (!state) return tl::unexpected(state.error());
  Step step(codec, shape, std::move(*state));

  CodecCost cost{.elements = elements_,
                 .feedback = step.state().has_feedback(),
                 .rounds = codec.traits().rounds};
  Status status;
  const double unit = copy_seconds(0);
  cost.first_encode = seconds_of([&] { status = step.encode(gradients_[0]); }) / unit;
  std::vector<double> copies;
  std::vector<double> encodes;
  std::vector<double> decodes;
  for (std::size_t turn = 1; turn <= turns.timed + turns.warmup; ++turn) {
    const double copy = copy_seconds(turn);
    double encode = 0.0;
    double decode = 0.0;
    if (status.is_ok()) status = step.finish_after_decode();
    encode = seconds_of([&] {
      if (status.is_ok()) status = step.encode(gradients_[turn % kGradients]);
    });
    decode = seconds_of([&] {
      if (status.is_ok()) status = step.decode();
    });
    if (!status.is_ok()) return tl::unexpected(status);
    if (turn <= turns.warmup) continue;
    copies.push_back(copy);
    encodes.push_back(encode);
    decodes.push_back(decode);
  }
  const double median_copy = spread_of(copies).median;
  cost.encode = divided(spread_of(encodes), median_copy);
  cost.decode = divided(spread_of(decodes), median_copy);
  cost.copy_us = median_copy * 1e6;
  cost.payload_bytes = step.payload_bytes();
  return cost;
}

}  // namespace gradpress::cli
