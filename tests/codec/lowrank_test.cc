// What holds for powersgd and acpsgd alike, over many steps and workers, and what hostile input may
// not do.
#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "codec/cluster.h"
#include "kernels/target.h"
#include "support/gradient.h"

namespace gradpress {
namespace {

using test::Bytes;
using test::Cluster;
using test::codec_of;
using test::Floats;
using test::gradients;
using test::norm;
using test::residual;
using test::state_of;

class LowRankCodec : public ::testing::TestWithParam<std::string> {
 protected:
  std::string with_rank(int rank) const { return GetParam() + ":" + std::to_string(rank); }
};
INSTANTIATE_TEST_SUITE_P(Both, LowRankCodec, ::testing::Values("powersgd", "acpsgd"),
                         [](const auto& param_info) { return param_info.param; });

const std::vector<Shape> kShapes = {
    Shape{48, 64}, Shape{64, 3, 7, 7}, Shape{3, 500}, Shape{500, 3},        Shape{1, 40},
    Shape{40, 1},  Shape{1, 1},        Shape{130},    Shape{7, 5, 3, 1, 2}, Shape{},
    Shape{0, 7},   Shape{33, 2100},
};

TEST_P(LowRankCodec, NothingIsLostAndRanksAgreeBitForBitOver20Steps) {
  for (const Shape& shape : kShapes) {
    for (const auto exchange : {Cluster::Exchange::kSummed, Cluster::Exchange::kEach}) {
      for (const int rank : {1, 4, 7}) {
        Cluster cluster(with_rank(rank), shape, 4, exchange);
        const std::size_t n = shape.elements();
        std::vector<double> balance(n, 0.0), magnitude(n, 0.0);
        for (std::uint64_t step = 0; step < 20; ++step) {
          const auto grads = gradients(cluster.size(), n, step + 7);
          const Floats applied = cluster.step(grads);
          for (std::size_t i = 0; i < n; ++i) {
            balance[i] -= 4.0 * double(applied[i]);
            for (const Floats& grad : grads) balance[i] += double(grad[i]);
            for (const Floats& grad : grads) magnitude[i] += std::fabs(double(grad[i]));
          }
        }
        double most = 0.0;
        for (std::size_t w = 0; w < cluster.size(); ++w) {
          const Floats left = residual(cluster.state(w));
          for (std::size_t i = 0; i < n; ++i) balance[i] -= double(left[i]);
          for (const float v : left) most = std::max(most, double(std::fabs(v)));
          EXPECT_NEAR(cluster.state(w).norm(), norm(left), 1e-5 * (norm(left) + 1e-6));
        }
        for (std::size_t i = 0; i < n; ++i) {
          ASSERT_LT(std::fabs(balance[i]), 1e-4 * (magnitude[i] + most))
              << shape.to_string() << " rank " << rank << " element " << i;
        }
      }
    }
  }
}

TEST_P(LowRankCodec, ZeroGradientsGiveZeroAndDoNotSpoilTheNextStep) {
  Cluster cluster(with_rank(4), Shape{20, 30}, 2);
  const std::vector<Floats> zero(2, Floats(600, 0.0F));
  for (int step = 0; step < 4; ++step) EXPECT_EQ(norm(cluster.step(zero)), 0.0);
  double applied = 0.0;
  for (int step = 0; step < 4; ++step) applied += norm(cluster.step(gradients(2, 600, 5)));
  EXPECT_TRUE(std::isfinite(applied));
  EXPECT_GT(applied, 0.0);
}

TEST_P(LowRankCodec, ExtremeScalesNeitherOverflowNorVanish) {
  for (const float scale : {1e-33F, 1e-20F, 1e15F}) {
    Cluster cluster(with_rank(3), Shape{40, 50}, 2);
    auto grads = gradients(2, 2000, 9);
    for (Floats& grad : grads) {
      const float most = *std::ranges::max_element(grad);
      for (float& v : grad) v = std::clamp(v / most, -1.0F, 1.0F) * scale;
    }
    double applied = 0.0;
    for (int step = 0; step < 6; ++step) applied = norm(cluster.step(grads));
    EXPECT_TRUE(std::isfinite(applied)) << scale;
    EXPECT_GT(applied, 0.1 * norm(grads[0])) << scale;
  }
}

TEST_P(LowRankCodec, RankDeficientMatricesAreReachedToRounding) {
  // A constant matrix of rank 2, sent at rank 4. acpsgd's single steps swing around it (the
  // residual of a P-step is in the next Q-step's X), but every pair of steps applies twice the
  // matrix.
  const std::size_t rows = 60, cols = 45;
  const auto u = test::gradient(rows * 2, 1), v = test::gradient(cols * 2, 2);
  Floats matrix(rows * cols);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) {
      matrix[i * cols + j] = u[i] * v[j] + u[rows + i] * v[cols + j];
    }
  }
  Cluster cluster(with_rank(4), Shape{rows, cols}, 3);
  Floats rest(matrix.size(), 0.0F);
  for (int step = 0; step < 40; ++step) {
    const Floats applied = cluster.step({matrix, matrix, matrix});
    if (step < 38) continue;
    for (std::size_t i = 0; i < rest.size(); ++i) rest[i] += applied[i] - matrix[i];
  }
  EXPECT_LT(norm(rest), 2e-6 * norm(matrix));
  EXPECT_LT(cluster.state(0).norm(), 2e-6 * norm(matrix));
}

TEST_P(LowRankCodec, OneWorkersErrorIsNeverLongerThanItsInput) {
  for (const Shape& shape : kShapes) {
    Cluster cluster(with_rank(2), shape, 1);
    Floats carried(shape.elements(), 0.0F);
    for (std::uint64_t step = 0; step < 6; ++step) {
      const auto grads = gradients(1, shape.elements(), step);
      for (std::size_t i = 0; i < carried.size(); ++i) carried[i] += grads[0][i];
      const double input = norm(carried);
      (void)cluster.step(grads);
      carried = residual(cluster.state(0));
      EXPECT_LE(norm(carried), input * (1.0 + 1e-5)) << shape.to_string();
    }
  }
}

TEST_P(LowRankCodec, FactorsOfFullRankCarryEverything) {
  // A square matrix of r' = rows = cols: the basis is whole, in both kinds of step.
  Cluster cluster(with_rank(8), Shape{5, 5}, 1);
  for (std::uint64_t step = 0; step < 4; ++step) {
    const auto grads = gradients(1, 25, step + 50);
    (void)cluster.step(grads);
    EXPECT_LT(cluster.state(0).norm(), 1e-5 * norm(grads[0]));
  }
}

TEST_P(LowRankCodec, PayloadsHaveTheSizesOfTheWireFormat) {
  const auto codec = codec_of(with_rank(4));
  EXPECT_EQ(codec->name(), with_rank(4));
  EXPECT_TRUE(codec->traits().reducible);
  EXPECT_FALSE(codec->traits().shardable);
  EXPECT_EQ(codec->traits().payload_type, DataType::kFloat32);
  const bool two = codec->traits().rounds == 2;
  EXPECT_EQ(codec->traits().fixed_size, two);
  EXPECT_EQ(codec->payload_bound(Shape{64, 3, 7, 7}, 0), (two ? 64U : 147U) * 16U);
  EXPECT_EQ(codec->payload_bound(Shape{2, 100}, 0), (two ? 2U : 100U) * 8U);
  EXPECT_EQ(codec->payload_bound(Shape{77}, 0), 308U);
  EXPECT_EQ(codec->payload_bound(Shape{77}, 1), two ? 0U : 308U);
  EXPECT_EQ(codec->contraction(Shape{5, 5}), 0.0);
  EXPECT_EQ(codec->contraction(Shape{5}), 1.0);
}

TEST_P(LowRankCodec, NonFiniteGradientsLeaveResidualAndFactorsAsTheyWere) {
  for (const Shape& shape : {Shape{12, 31}, Shape{100}}) {
    for (int warm = 1; warm <= 2; ++warm) {
      Cluster cluster(with_rank(3), shape, 1);
      const std::size_t n = shape.elements();
      for (int step = 0; step < warm; ++step) {
        (void)cluster.step(gradients(1, n, std::uint64_t(step)));
      }
      State& state = cluster.state(0);
      const Floats before = residual(state);
      const Bytes extras = state.save_extras();
      Bytes out(cluster.codec().payload_bound(shape, 0));
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(), kGradientLimit}) {
        const Floats clean = test::gradient(n, 77);
        Floats grad = clean;
        grad[n / 2] = bad;
        const auto used = cluster.codec().encode(state, {.grad = grad, .reduced = {}}, out);
        ASSERT_FALSE(used.has_value());
        EXPECT_EQ(used.error().code(), Code::kNonFinite);
        const Floats after = residual(state);
        for (std::size_t i = 0; i < n; ++i) {
          ASSERT_NEAR(after[i], before[i], 1e-5 * (1.0 + std::fabs(clean[i]))) << i;
        }
        EXPECT_EQ(state.save_extras(), extras);
      }
      EXPECT_TRUE(std::isfinite(norm(cluster.step(gradients(1, n, 99)))));
    }
  }
}

TEST_P(LowRankCodec, ScaleMultipliesTheResidualAlone) {
  Cluster cluster(with_rank(3), Shape{21, 34}, 1);
  for (std::uint64_t step = 0; step < 3; ++step) (void)cluster.step(gradients(1, 714, step));
  State& state = cluster.state(0);
  const Floats before = residual(state);
  const Bytes extras = state.save_extras();
  state.scale(-0.25F);
  const Floats after = residual(state);
  for (std::size_t i = 0; i < before.size(); ++i) {
    ASSERT_NEAR(after[i], -0.25 * before[i], 1e-5 * (1.0 + std::fabs(before[i])));
  }
  EXPECT_EQ(state.save_extras(), extras);
  state.scale(0.0F);
  EXPECT_EQ(state.norm(), 0.0);
  EXPECT_EQ(state.save_extras(), extras);
}

TEST_P(LowRankCodec, ACheckpointContinuesBitForBit) {
  for (int steps = 0; steps <= 3; ++steps) {
    Cluster first(with_rank(3), Shape{21, 34}, 2);
    Cluster second(with_rank(3), Shape{21, 34}, 2);
    for (int step = 0; step < steps; ++step) {
      (void)first.step(gradients(2, 714, std::uint64_t(step)));
    }
    for (std::size_t w = 0; w < 2; ++w) {
      const Floats saved = residual(first.state(w));
      ASSERT_TRUE(second.state(w).load(saved).is_ok());
      ASSERT_TRUE(second.state(w).load_extras(first.state(w).save_extras()).is_ok());
      // What is saved is the residual itself, so the first goes on from that too.
      ASSERT_TRUE(first.state(w).load(saved).is_ok());
    }
    for (std::uint64_t step = 10; step < 13; ++step) {
      const auto grads = gradients(2, 714, step);
      EXPECT_EQ(first.step(grads), second.step(grads)) << "after " << steps;
    }
  }
}

TEST_P(LowRankCodec, ForeignExtrasAreRefused) {
  const auto codec = codec_of(with_rank(3));
  const auto state = state_of(*codec, {.shape = Shape{9, 8}, .feedback = {}});
  const Bytes good = state->save_extras();
  const auto refused = [&](const Bytes& bytes) {
    const Status status = state->load_extras(bytes);
    EXPECT_EQ(status.code(), Code::kCorruptPayload) << status.to_string();
    EXPECT_EQ(state->save_extras(), good);
  };
  refused({});
  refused(Bytes(good.begin(), good.end() - 4));
  Bytes longer = good;
  longer.resize(good.size() + 4);
  refused(longer);
  for (const std::size_t at : {std::size_t{0}, std::size_t{4}}) {
    Bytes other = good;
    other[at] ^= std::byte{1};
    refused(other);
  }
  Bytes poisoned = good;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(&poisoned[good.size() - sizeof nan], &nan, sizeof nan);
  refused(poisoned);
  const auto other = codec_of(GetParam() == "acpsgd" ? "powersgd:3" : "acpsgd:3");
  refused(state_of(*other, {.shape = Shape{9, 8}, .feedback = {}})->save_extras());
  if (GetParam() == "acpsgd") {
    Bytes parity = good;
    parity[8] = std::byte{2};
    refused(parity);
    Bytes stretched = good;
    const float ten = 10.0F;
    std::memcpy(&stretched[12], &ten, sizeof ten);
    refused(stretched);
  }
  EXPECT_TRUE(state->load_extras(good).is_ok());
}

TEST_P(LowRankCodec, HostilePayloadsAreRefusedAndChangeNothing) {
  for (const Shape& shape : {Shape{12, 31}, Shape{50}}) {
    const auto codec = codec_of(with_rank(3));
    const auto state = state_of(*codec, {.shape = shape, .feedback = {}});
    const Floats grad = test::gradient(shape.elements(), 1);
    Bytes payload;
    for (unsigned round = 0; round < codec->traits().rounds; ++round) {
      const Bytes reduced = payload;
      payload.resize(codec->payload_bound(shape, round));
      const auto used =
          codec->encode(*state, {.grad = grad, .round = round, .reduced = reduced}, payload);
      ASSERT_TRUE(used.has_value());
      payload.resize(*used);
    }
    Floats dst(grad.size(), 0.0F);
    const auto refused = [&](const Bytes& bytes) {
      const Bytes extras = state->save_extras();
      const Status status = codec->decode(*state, {.payload = bytes}, dst);
      EXPECT_EQ(status.code(), Code::kCorruptPayload) << status.to_string();
      EXPECT_EQ(state->save_extras(), extras);
      EXPECT_EQ(norm(dst), 0.0);
    };
    Bytes longer = payload;
    longer.push_back(std::byte{0});
    refused(longer);
    for (std::size_t cut = 0; cut < payload.size(); cut += 1 + payload.size() / 5) {
      refused(Bytes(payload.begin(), payload.begin() + long(cut)));
    }
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::infinity(), 3e38F}) {
      if (payload.empty()) continue;
      Bytes poisoned = payload;
      std::memcpy(&poisoned[payload.size() - sizeof bad], &bad, sizeof bad);
      refused(poisoned);
    }
    Floats narrow(grad.size() - 1);
    EXPECT_EQ(codec->decode(*state, {.payload = payload}, narrow).code(), Code::kInvalidArgument);
    EXPECT_TRUE(codec->decode(*state, {.payload = payload}, dst).is_ok());
    EXPECT_GT(norm(dst), 0.0);
  }
}

TEST_P(LowRankCodec, PayloadsAtOddAddressesDecodeTheSame) {
  const auto codec = codec_of(with_rank(3));
  const Shape shape{12, 31};
  const Floats grad = test::gradient(shape.elements(), 1);
  Floats results[2];
  for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
    const auto state = state_of(*codec, {.shape = shape, .feedback = {}});
    Bytes buffer;
    std::size_t size = 0;
    for (unsigned round = 0; round < codec->traits().rounds; ++round) {
      const Bytes reduced(buffer.begin() + long(buffer.empty() ? 0 : shift),
                          buffer.begin() + long(buffer.empty() ? 0 : shift + size));
      buffer.assign(codec->payload_bound(shape, round) + shift, std::byte{0});
      const auto used = codec->encode(*state, {.grad = grad, .round = round, .reduced = reduced},
                                      std::span(buffer).subspan(shift));
      ASSERT_TRUE(used.has_value());
      size = *used;
    }
    results[shift].assign(grad.size(), 0.5F);
    ASSERT_TRUE(
        codec->decode(*state, {.payload = std::span(buffer).subspan(shift, size)}, results[shift])
            .is_ok());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_P(LowRankCodec, OverwritingIsClearingAndAddingBitForBit) {
  const auto codec = codec_of(with_rank(3));
  for (const Shape& shape : {Shape{12, 31}, Shape{70, 2100}, Shape{3, 40000}, Shape{130}}) {
    const Floats grad = test::gradient(shape.elements(), 1);
    const auto decoded = [&](bool overwrite) {
      const auto state = state_of(*codec, {.shape = shape, .feedback = {}});
      Bytes payload;
      for (unsigned round = 0; round < codec->traits().rounds; ++round) {
        const Bytes reduced = payload;
        payload.assign(codec->payload_bound(shape, round), std::byte{0});
        const auto used =
            codec->encode(*state, {.grad = grad, .round = round, .reduced = reduced}, payload);
        EXPECT_TRUE(used.has_value());
        payload.resize(used.value_or(0));
      }
      Floats dst(grad.size(), overwrite ? std::numeric_limits<float>::quiet_NaN() : 0.0F);
      const Status status =
          codec->decode(*state, {.payload = payload, .weight = 0.25F, .overwrite = overwrite}, dst);
      EXPECT_TRUE(status.is_ok()) << status.to_string();
      return dst;
    };
    EXPECT_EQ(decoded(true), decoded(false)) << shape.to_string();
  }
}

TEST_P(LowRankCodec, StatesOfOtherCodecsAndRanksAreRefused) {
  const auto codec = codec_of(with_rank(3));
  const Floats grad(72, 1.0F);
  Floats dst(72);
  Bytes out(4096);
  for (const std::string& other : {std::string("efsign"), with_rank(2)}) {
    const auto state = state_of(*codec_of(other), {.shape = Shape{9, 8}, .feedback = {}});
    EXPECT_EQ(codec->encode(*state, {.grad = grad, .reduced = {}}, out).error().code(),
              Code::kInvalidArgument);
    EXPECT_EQ(codec->decode(*state, {.payload = out}, dst).code(), Code::kInvalidArgument);
    EXPECT_EQ(codec->finish(*state, 1, dst).code(), Code::kInvalidArgument);
  }
}

TEST_P(LowRankCodec, PayloadBytesAreEqualOnEveryTarget) {
  std::vector<Floats> first;
  for (const std::string& target : kernels::supported_targets()) {
    const auto pinned = kernels::ScopedTarget::pin(target);
    ASSERT_TRUE(pinned.has_value());
    Cluster cluster(with_rank(5), Shape{37, 2, 29}, 2);
    std::vector<Floats> applied;
    for (std::uint64_t step = 0; step < 5; ++step) {
      applied.push_back(cluster.step(gradients(2, 37 * 58, step)));
    }
    applied.push_back(residual(cluster.state(1)));
    if (first.empty()) first = applied;
    EXPECT_EQ(applied, first) << target;
  }
}

TEST_P(LowRankCodec, WithoutFeedbackTheGradientAloneIsProjected) {
  const auto codec = codec_of(with_rank(4));
  const Shape shape{30, 40};
  const auto state = state_of(*codec, {.shape = shape, .feedback = false});
  for (std::uint64_t step = 0; step < 4; ++step) {
    const Floats grad = test::gradient(shape.elements(), step);
    Bytes payload;
    for (unsigned round = 0; round < codec->traits().rounds; ++round) {
      const Bytes reduced = payload;
      payload.resize(codec->payload_bound(shape, round));
      const auto used =
          codec->encode(*state, {.grad = grad, .round = round, .reduced = reduced}, payload);
      ASSERT_TRUE(used.has_value()) << used.error().to_string();
      payload.resize(*used);
    }
    Floats dst(grad.size(), 0.0F);
    ASSERT_TRUE(codec->decode(*state, {.payload = payload}, dst).is_ok());
    ASSERT_TRUE(codec->finish(*state, 1, dst).is_ok());
    Floats rest(grad.size());
    for (std::size_t i = 0; i < rest.size(); ++i) rest[i] = grad[i] - dst[i];
    // A projection: Pythagoras holds between what was sent and what was not.
    EXPECT_NEAR(std::hypot(norm(rest), norm(dst)), norm(grad), 1e-4 * norm(grad));
    EXPECT_EQ(state->norm(), 0.0);
  }
}

}  // namespace
}  // namespace gradpress
