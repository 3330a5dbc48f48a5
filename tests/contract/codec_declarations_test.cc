// What a codec declares about itself, held against what it does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "contract/every_codec.h"

namespace gradpress::test {
namespace {

class CodecDeclarations : public EveryCodec {};
GRADPRESS_FOR_EVERY_CODEC(CodecDeclarations);

using Vector = std::vector<float>;

double squared_length(const Vector& v) {
  double squares = 0.0;
  for (const float x : v) squares += double{x} * x;
  return squares;
}

struct Named {
  std::string name;
  Vector x;
};

std::vector<Named> distributions(std::size_t n, std::uint64_t seed) {
  std::vector<Named> all = {{"heavy tail", gradients(n, 1, 0, seed).front()},
                            {"constant", Vector(n, 0.37F)},
                            {"one spike", Vector(n, 0.0F)},
                            {"alternating", Vector(n)},
                            {"ramp", Vector(n)},
                            {"one sign", gradients(n, 1, 1, seed).front()}};
  all[2].x[n / 3] = -4.25F;
  for (std::size_t i = 0; i < n; ++i) {
    all[3].x[i] = i % 2 == 0 ? 1.5F : -1.5F;
    all[4].x[i] = static_cast<float>(i) / static_cast<float>(n);
    all[5].x[i] = std::fabs(all[5].x[i]);
  }
  return all;
}

/// decode(encode(x)) by a fresh state of one worker.
Vector once(const std::string& text, const Shape& shape, const Vector& x, std::uint64_t seed,
            std::uint64_t step) {
  Group group({.codec = text, .shape = shape, .seed = seed});
  const Status status = group.step({x}, step);
  EXPECT_TRUE(status.is_ok()) << status.to_string();
  return group.results[0];
}

TEST_P(CodecDeclarations, DeclarationsDoNotContradictOneAnother) {
  const auto codec = *make_codec(text());
  const Traits& traits = codec->traits();
  EXPECT_EQ(traits.reducible, traits.payload_type != DataType::kBytes);
  if (traits.needs_feedback) {
    EXPECT_TRUE(traits.supports_feedback && traits.biased);
  }
  EXPECT_GE(traits.rounds, 1U);
  if (traits.rounds > 1) {
    EXPECT_TRUE(traits.reducible) << "a second round needs the first's sum";
  }
  for (const Shape& shape : {Shape{1000}, Shape{40, 25}, Shape{1}}) {
    EXPECT_EQ(codec->variance(shape).has_value(), !traits.biased);
    if (const auto alpha = codec->contraction(shape)) {
      EXPECT_GE(*alpha, 0.0);
      EXPECT_LE(*alpha, 1.0);
    }
    if (const auto omega = codec->variance(shape)) {
      EXPECT_GE(*omega, 0.0);
    }
  }
}

TEST_P(CodecDeclarations, NameIsATextThatMakesTheSameCodec) {
  const auto codec = *make_codec(text());
  EXPECT_EQ(codec->name(), codec::to_text(*codec::parse_spec(text())));
  const auto again = make_codec(codec->name());
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ((*again)->name(), codec->name());
}

TEST_P(CodecDeclarations, PayloadBoundIsThePlannersFigure) {
  const auto codec = *make_codec(text());
  const auto spec = *codec::parse_spec(text());
  for (const Shape& shape :
       {Shape{0}, Shape{1}, Shape{33}, Shape{65537}, Shape{64, 3, 7, 7}, Shape{3'000'000'000}}) {
    const std::size_t bound = codec->payload_bound(shape);
    if (spec.kind == codec::Kind::kAcpSgd) {
      EXPECT_EQ(bound, std::max(codec::payload_bytes(spec, shape, 0),
                                codec::payload_bytes(spec, shape, 1)));
    } else {
      EXPECT_EQ(bound, codec::payload_bytes(spec, shape, 0)) << shape.to_string();
    }
    if (codec->traits().rounds > 1) {
      EXPECT_EQ(codec->payload_bound(shape, 1), codec::payload_bytes(spec, shape, 1));
    }
  }
}

TEST_P(CodecDeclarations, SumsOfReduciblePayloadsDecodeToTheSumOfWhatTheyCarry) {
  const auto codec = *make_codec(text());
  const Traits& traits = codec->traits();
  if (!traits.reducible) return;
  const double unit = traits.payload_type == DataType::kFloat32   ? 0x1p-20
                      : traits.payload_type == DataType::kFloat16 ? 0x1p-10
                                                                  : 0x1p-7;
  for (const Shape& shape : {Shape{1001}, Shape{30, 40}, Shape{1}}) {
    for (const std::uint32_t workers : {2U, 4U}) {
      SCOPED_TRACE(shape.to_string() + ", seed " + std::to_string(seed_));
      Group one({.codec = text(), .shape = shape, .workers = workers});
      Group sum(
          {.codec = text(), .shape = shape, .workers = workers, .exchange = Exchange::kSummed});
      const bool narrow = traits.payload_type != DataType::kFloat32;
      for (std::uint64_t step = 0; step < 3; ++step) {
        const auto grads = gradients(shape.elements(), workers, step, seed_);
        std::vector<Vector> before;
        for (std::uint32_t w = 0; w < workers; ++w) before.push_back(one.residual(w));
        ASSERT_TRUE(one.step(grads, step).is_ok());
        ASSERT_TRUE(sum.step(grads, step).is_ok());
        double largest = 0.0;
        for (const Vector& g : grads) largest += std::sqrt(squared_length(g));
        for (std::size_t i = 0; i < shape.elements(); ++i) {
          double size = shape.is_matrix() && !narrow ? largest : 0.0;
          for (std::uint32_t w = 0; w < workers; ++w) {
            size += std::fabs(grads[w][i]) + std::fabs(before[w][i]);
            if (size > largest) break;
          }
          ASSERT_NEAR(sum.results[0][i], one.results[0][i], unit * size + 0x1p-23)
              << "step " << step << " element " << i;
        }
      }
    }
  }
}

TEST_P(CodecDeclarations, UnbiasedCodecsAverageToTheInputWithinTheDeclaredVariance) {
  const auto codec = *make_codec(text());
  if (codec->traits().biased) return;
  const std::size_t n = 512;
  const Shape shape{16, 32};
  const auto omega = codec->variance(shape);
  ASSERT_TRUE(omega.has_value());
  const int draws = 2000;
  for (const auto& [name, x] : distributions(n, seed_)) {
    SCOPED_TRACE(name + ", seed " + std::to_string(seed_));
    std::vector<double> mean(n, 0.0);
    double error = 0.0;
    for (int draw = 0; draw < draws; ++draw) {
      const auto seed = static_cast<std::uint64_t>(draw / 2);
      const Vector y = once(text(), shape, x, seed, static_cast<std::uint64_t>(draw % 2));
      for (std::size_t i = 0; i < n; ++i) {
        mean[i] += double{y[i]} / draws;
        error += (double{y[i]} - x[i]) * (double{y[i]} - x[i]) / draws;
      }
    }
    const double size = squared_length(x);
    // The measured variance itself spreads by a few per cent over 2000 draws.
    EXPECT_LE(error, *omega * size * 1.15 + 1e-10 * size);
    double bias = 0.0;
    for (std::size_t i = 0; i < n; ++i) bias += (mean[i] - x[i]) * (mean[i] - x[i]);
    // Of an unbiased codec's mean, error / draws is left; a single noisy element spreads most.
    EXPECT_LE(bias, 12.0 * error / draws + 1e-10 * size) << "error " << error;
  }
}

TEST_P(CodecDeclarations, CodecsThatNeedFeedbackAreBiased) {
  const auto codec = *make_codec(text());
  if (!codec->traits().needs_feedback || codec->contraction({24, 25}) == 1.0) return;
  const std::size_t n = 600;
  const Vector x = gradients(n, 1, 0, seed_).front();
  std::vector<double> mean(n, 0.0);
  const int draws = 400;
  for (int draw = 0; draw < draws; ++draw) {
    const Vector y = once(text(), {24, 25}, x, static_cast<std::uint64_t>(draw), 0);
    for (std::size_t i = 0; i < n; ++i) mean[i] += double{y[i]} / draws;
  }
  double bias = 0.0;
  for (std::size_t i = 0; i < n; ++i) bias += (mean[i] - x[i]) * (mean[i] - x[i]);
  const auto spec = *codec::parse_spec(text());
  if (codec::kept_elements(spec, n) == n && spec.rank == 0 &&
      codec::payload_bytes(spec, {24, 25}) >= 4 * n) {
    return;  // a sparsifier that keeps everything
  }
  EXPECT_GT(bias, 1e-6 * squared_length(x));
}

TEST_P(CodecDeclarations, ErrorsStayWithinTheDeclaredContraction) {
  const auto codec = *make_codec(text());
  for (const Shape& shape : {Shape{600}, Shape{24, 25}, Shape{7}, Shape{1}}) {
    const auto alpha = codec->contraction(shape);
    if (!alpha) continue;
    auto inputs = distributions(shape.elements(), seed_);
    // "Every x" includes those that leave a narrow format's range.
    for (const float factor : {1e-9F, 1e9F}) {
      Vector scaled = inputs[0].x;
      for (float& v : scaled) v *= factor;
      inputs.push_back({"heavy tail scaled by " + std::to_string(factor), scaled});
    }
    // Products of factors round in single precision; all else must keep its word exactly.
    const double rounding = text().find("sgd:") == std::string::npos ? 1e-12 : 1e-6;
    for (const auto& [name, x] : inputs) {
      const int draws = 200;
      double error = 0.0;
      double first = 0.0;
      bool varies = false;
      for (int draw = 0; draw < draws; ++draw) {
        const Vector y = once(text(), shape, x, static_cast<std::uint64_t>(draw), 0);
        double squares = 0.0;
        for (std::size_t i = 0; i < x.size(); ++i) {
          squares += (double{y[i]} - x[i]) * (double{y[i]} - x[i]);
        }
        if (draw == 0) first = squares;
        varies = varies || squares != first;
        error += squares / draws;
      }
      const double size = squared_length(x);
      const double grace = varies ? 0.1 * (1.0 - *alpha) + 0.15 * *alpha : 0.0;
      EXPECT_LE(error, (1.0 - *alpha + grace + rounding) * size)
          << shape.to_string() << ", " << name << ", alpha " << *alpha << ", error "
          << error / size;
    }
  }
}

}  // namespace
}  // namespace gradpress::test
