// What workers hold after exchanging payloads: against the model, on every target, and over many
// steps nothing lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "contract/every_codec.h"
#include "kernels/target.h"

namespace gradpress::test {
namespace {

class CodecExchange : public EveryCodec {};
GRADPRESS_FOR_EVERY_CODEC(CodecExchange);

struct Setting {
  Shape shape;
  std::uint32_t workers = 1;
  std::uint32_t shards = 1;
};

std::string describe(const Setting& setting) {
  return setting.shape.to_string() + ", " + std::to_string(setting.workers) + " workers, " +
         std::to_string(setting.shards) + " shards";
}

/// Every awkward size with every number of shards; the large one once.
std::vector<Setting> settings(const Traits& traits) {
  std::vector<Setting> all;
  const std::vector<Shape> shapes = {{0},     {1},    {2},       {31},      {32},        {33},
                                     {1000},  {1023}, {1, 1},    {1, 7},    {7, 1},      {2, 3},
                                     {31, 5}, {5, 4}, {1000, 2}, {2, 1000}, {6, 5, 3, 3}};
  std::uint32_t turn = 0;
  for (const Shape& shape : shapes) {
    for (const std::uint32_t shards : {1U, 2U, 3U, 7U}) {
      if (shards > 1 && !traits.shardable) continue;
      all.push_back({shape, 1 + turn++ % 4, shards});
    }
  }
  for (const std::uint32_t workers : {1U, 2U, 3U, 4U}) all.push_back({{40, 26}, workers, 1});
  all.push_back({{65537}, 2, traits.shardable ? 3U : 1U});
  return all;
}

void expect_near(std::span<const float> got, const Expected& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.values.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::fabs(got[i] - expected.values[i]), expected.tolerance[i])
        << what << ", element " << i << ": got " << got[i] << ", wanted " << expected.values[i];
  }
}

void expect_model_agrees(const std::string& text, const Setting& setting,
                         std::optional<bool> feedback, std::uint64_t seed) {
  Group group({.codec = text,
               .shape = setting.shape,
               .workers = setting.workers,
               .seed = seed,
               .feedback = feedback});
  const auto model = make_model(group.model_options());
  for (std::uint64_t step = 0; step < 4; ++step) {
    const auto grads = gradients(setting.shape.elements(), setting.workers, step, seed);
    const Status status = group.step(grads, step, setting.shards);
    ASSERT_TRUE(status.is_ok()) << status.to_string();
    const Expected expected = model->step(grads, step, group.carrying());
    ASSERT_TRUE(model->complaints.empty()) << model->complaints.front();
    for (std::uint32_t w = 0; w < setting.workers; ++w) {
      ASSERT_EQ(group.results[w], group.results[0]) << "workers disagree";
      const Expected residual{.values = model->residuals[w], .tolerance = model->noise[w]};
      expect_near(group.residual(w), residual,
                  "residual of worker " + std::to_string(w) + ", step " + std::to_string(step));
    }
    expect_near(group.results[0], expected, "result, step " + std::to_string(step));
  }
}

TEST_P(CodecExchange, ResultsAndResidualsAgreeWithTheModel) {
  const auto codec = make_codec(text());
  ASSERT_TRUE(codec.has_value()) << codec.error().to_string();
  for (const Setting& setting : settings((*codec)->traits())) {
    SCOPED_TRACE(describe(setting) + ", seed " + std::to_string(seed_));
    expect_model_agrees(text(), setting, std::nullopt, seed_);
    if (HasFatalFailure()) return;
  }
}

TEST_P(CodecExchange, AgreesWithTheModelWhenFeedbackIsTheOtherWayAbout) {
  const auto codec = *make_codec(text());
  if (!codec->traits().supports_feedback) return;
  for (const Setting& setting : {Setting{{1000}, 2, codec->traits().shardable ? 3U : 1U},
                                 Setting{{31, 33}, 3, 1}, Setting{{1}, 1, 1}}) {
    SCOPED_TRACE(describe(setting) + ", seed " + std::to_string(seed_));
    expect_model_agrees(text(), setting, !codec->traits().needs_feedback, seed_);
    if (HasFatalFailure()) return;
  }
}

TEST_P(CodecExchange, PayloadsHaveTheDeclaredLengths) {
  const auto codec = *make_codec(text());
  const Traits& traits = codec->traits();
  for (const Setting& setting : settings(traits)) {
    SCOPED_TRACE(describe(setting));
    const std::uint64_t n = setting.shape.elements();
    for (unsigned round = 0; round < traits.rounds; ++round) {
      std::size_t sum = 0;
      for (std::uint32_t s = 0; s < setting.shards; ++s) {
        const Shape part = setting.shards == 1
                               ? setting.shape
                               : Shape::flat(shard_range(n, setting.shards, s).count);
        sum += codec->payload_bound(part, round);
      }
      ASSERT_EQ(codec->encode_bound(setting.shape, setting.shards, round), sum);
    }
    Group group({.codec = text(), .shape = setting.shape, .workers = setting.workers});
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto grads = gradients(n, setting.workers, step, seed_);
      const Status status = group.step(grads, step, setting.shards);
      ASSERT_TRUE(status.is_ok()) << status.to_string();
      for (std::uint32_t s = 0; s < setting.shards; ++s) {
        const Shape part = setting.shards == 1
                               ? setting.shape
                               : Shape::flat(shard_range(n, setting.shards, s).count);
        const auto expect_length = [&](std::size_t bytes, unsigned round) {
          const std::size_t bound = codec->payload_bound(part, round);
          EXPECT_LE(bytes, bound);
          if (traits.fixed_size) {
            EXPECT_EQ(bytes, bound) << "declared fixed";
          }
        };
        for (std::uint32_t w = 0; w < setting.workers; ++w) {
          expect_length(group.first_round[w][s].size(), 0);
          expect_length(group.sent[w][s].size(), traits.rounds - 1);
        }
      }
    }
  }
}

TEST_P(CodecExchange, PayloadBytesAndResultsAreEqualOnEveryTarget) {
  const bool shardable = (*make_codec(text()))->traits().shardable;
  for (const Setting& setting :
       {Setting{{1023}, 2, 1}, Setting{{33, 47}, 2, 1}, Setting{{5000}, 1, shardable ? 7U : 1U}}) {
    SCOPED_TRACE(describe(setting));
    std::vector<std::vector<Payloads>> first_sent;
    std::vector<std::vector<float>> first_results;
    for (const std::string& target : kernels::supported_targets()) {
      const auto pinned = kernels::ScopedTarget::pin(target);
      ASSERT_TRUE(pinned.has_value());
      ASSERT_EQ(kernels::active_target(), target);
      Group group({.codec = text(), .shape = setting.shape, .workers = setting.workers});
      for (std::uint64_t step = 0; step < 4; ++step) {
        const auto grads = gradients(setting.shape.elements(), setting.workers, step, seed_);
        ASSERT_TRUE(group.step(grads, step, setting.shards).is_ok());
        if (first_sent.size() == step) {
          first_sent.push_back(group.sent);
          first_results.push_back(group.results[0]);
        }
        ASSERT_EQ(group.sent, first_sent[step]) << target << ", step " << step;
        ASSERT_EQ(group.results[0], first_results[step]) << target << ", step " << step;
      }
    }
  }
}

/// Sums up a run: workers × Σ applied + Σ residuals against Σ gradients, and how large the numbers
/// were that single precision had to round on the way.
class Ledger {
 public:
  explicit Ledger(std::size_t elements) : balance_(elements, 0.0), moved_(elements, 0.0) {}

  void add(const std::vector<std::vector<float>>& grads, const Group& group) {
    const auto workers = static_cast<std::uint32_t>(grads.size());
    for (std::uint32_t w = 0; w < workers; ++w) {
      const auto residual = group.residual(w);
      for (std::size_t i = 0; i < balance_.size(); ++i) {
        balance_[i] += double{grads[w][i]} - double{group.results[0][i]};
        moved_[i] +=
            std::fabs(grads[w][i]) + std::fabs(residual[i]) + std::fabs(group.results[0][i]);
        largest_ = std::max(largest_, std::fabs(double{grads[w][i]}) + std::fabs(residual[i]));
      }
    }
  }

  /// Tolerance: 2^-20 of all that moved through the element; where products of factors make the
  /// value (`mixes`), also of the tensor's largest number.
  void expect_balanced(const Group& group, std::uint32_t workers, bool mixes) const {
    std::vector<double> rest = balance_;
    for (std::uint32_t w = 0; w < workers; ++w) {
      const auto residual = group.residual(w);
      for (std::size_t i = 0; i < rest.size(); ++i) rest[i] -= residual[i];
    }
    for (std::size_t i = 0; i < rest.size(); ++i) {
      const double left = rest[i];
      const double tolerance = 0x1p-20 * (moved_[i] + (mixes ? 20 * largest_ : 0.0)) + 1e-36;
      ASSERT_LE(std::fabs(left), tolerance)
          << "element " << i << ": " << moved_[i] << " moved, " << left << " lost";
    }
  }

 private:
  std::vector<double> balance_;
  std::vector<double> moved_;
  double largest_ = 0.0;
};

bool mixes_elements(const std::string& text) {
  const auto spec = codec::parse_spec(text);
  return spec->kind == codec::Kind::kPowerSgd || spec->kind == codec::Kind::kAcpSgd;
}

TEST_P(CodecExchange, NothingIsLostOverTenStepsWithChangingShards) {
  const auto codec = *make_codec(text());
  if (!codec->traits().supports_feedback) return;
  for (const std::uint32_t workers : {1U, 3U}) {
    for (const Shape& shape : {Shape{40, 25}, Shape{1001}, Shape{1}, Shape{3, 2}}) {
      SCOPED_TRACE(shape.to_string() + ", seed " + std::to_string(seed_));
      Group group({.codec = text(), .shape = shape, .workers = workers, .feedback = true});
      ASSERT_TRUE(group.state(0).has_feedback());
      Ledger ledger(shape.elements());
      const std::uint32_t shards[] = {1, 1, 3, 3, 7, 2, 1, 7, 3, 1};
      for (std::uint64_t step = 0; step < 10; ++step) {
        const auto grads = gradients(shape.elements(), workers, step, seed_);
        const Status status = group.step(grads, step, codec->traits().shardable ? shards[step] : 1);
        ASSERT_TRUE(status.is_ok()) << status.to_string();
        ledger.add(grads, group);
        ledger.expect_balanced(group, workers, mixes_elements(text()));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CodecExchange, NothingIsLostWhenTheCodecIsSwappedInTheMiddle) {
  if (!(*make_codec(text()))->traits().supports_feedback) return;
  const Shape shape{40, 25};
  for (const std::string& other : codec_texts()) {
    if (!(*make_codec(other))->traits().supports_feedback) continue;
    SCOPED_TRACE("then " + other + ", seed " + std::to_string(seed_));
    Group group({.codec = text(), .shape = shape, .workers = 2, .feedback = true});
    Ledger ledger(shape.elements());
    for (std::uint64_t step = 0; step < 6; ++step) {
      if (step == 3) {
        ASSERT_TRUE(group.swap_codec(other).is_ok());
      }
      const auto grads = gradients(shape.elements(), 2, step, seed_);
      const Status status = group.step(grads, step);
      ASSERT_TRUE(status.is_ok()) << status.to_string();
      ledger.add(grads, group);
    }
    ledger.expect_balanced(group, 2, mixes_elements(text()) || mixes_elements(other));
    if (HasFatalFailure()) return;
  }
}

TEST_P(CodecExchange, ZeroGradientsGoThroughAndLeaveNoTrace) {
  for (const Shape& shape : {Shape{1000}, Shape{20, 30}, Shape{1, 1}}) {
    Group group({.codec = text(), .shape = shape, .workers = 2});
    if (group.codec().traits().combine == Combine::kVote) return;
    const std::vector<std::vector<float>> zeros(2, std::vector<float>(shape.elements(), 0.0F));
    for (std::uint64_t step = 0; step < 3; ++step) {
      const Status status = group.step(zeros, step);
      ASSERT_TRUE(status.is_ok()) << status.to_string();
      EXPECT_EQ(group.results[0], zeros[0]);
      EXPECT_EQ(group.state(0).norm(), 0.0);
    }
    const auto grads = gradients(shape.elements(), 2, 3, seed_);
    Ledger ledger(shape.elements());
    ASSERT_TRUE(group.step(grads, 3).is_ok());
    ledger.add(grads, group);
    if (group.state(0).has_feedback()) ledger.expect_balanced(group, 2, mixes_elements(text()));
  }
}

TEST_P(CodecExchange, ReplicasWithTheSameSeedSendTheSameBytes) {
  for (const Shape& shape : {Shape{1023}, Shape{20, 30}}) {
    // Three workers with one gradient: whatever told them apart would have to be their rank.
    Group group({.codec = text(), .shape = shape, .workers = 3, .seed = seed_});
    for (std::uint64_t step = 0; step < 4; ++step) {
      const std::vector<std::vector<float>> grads(
          3, gradients(shape.elements(), 1, step, seed_).front());
      ASSERT_TRUE(group.step(grads, step).is_ok());
      EXPECT_EQ(group.first_round[1], group.first_round[0]);
      EXPECT_EQ(group.sent[1], group.sent[0]);
      EXPECT_EQ(group.sent[2], group.sent[0]);
    }
  }
}

TEST_P(CodecExchange, RandomWordsChangeWithSeedTensorStepSiteAndShard) {
  const auto spec = *codec::parse_spec(text());
  const bool random = spec.kind == codec::Kind::kQsgd || spec.kind == codec::Kind::kTernGrad ||
                      spec.kind == codec::Kind::kNatural || spec.kind == codec::Kind::kKashin ||
                      spec.kind == codec::Kind::kRandomK;
  const bool keeps_all = spec.kind == codec::Kind::kRandomK && spec.ratio == 1.0;
  if (!random || keeps_all) return;
  const auto codec = *make_codec(text());
  const auto grad = gradients(1000, 1, 0, seed_).front();
  const auto decoded = [&](StateOptions options, std::uint64_t step) {
    options.shape = Shape::flat(grad.size());
    options.feedback = false;
    auto state = *codec->make_state(options);
    std::vector<std::byte> out(codec->encode_bound(options.shape));
    const auto bytes = codec->encode(*state, {.grad = grad, .step = step}, out);
    std::vector<float> dst(grad.size());
    EXPECT_TRUE(codec
                    ->decode(*state,
                             {.payload = std::span(out).first(*bytes),
                              .shard = options.first_shard,
                              .step = step},
                             dst)
                    .is_ok());
    return dst;
  };
  const auto base = decoded({.seed = 1, .tensor = 2, .site = 0}, 5);
  EXPECT_EQ(base, decoded({.seed = 1, .tensor = 2, .site = 0}, 5));
  EXPECT_NE(base, decoded({.seed = 9, .tensor = 2, .site = 0}, 5)) << "the seed enters nowhere";
  EXPECT_NE(base, decoded({.seed = 1, .tensor = 3, .site = 0}, 5)) << "the tensor enters nowhere";
  EXPECT_NE(base, decoded({.seed = 1, .tensor = 2, .site = 0}, 6)) << "the step enters nowhere";
  EXPECT_NE(base, decoded({.seed = 1, .tensor = 2, .site = 1}, 5)) << "the site enters nowhere";
  EXPECT_NE(base, decoded({.seed = 1, .tensor = 2, .site = 0, .first_shard = 4}, 5))
      << "the shard enters nowhere";
}

TEST(Selection, RedSyncQAlternatesBetweenTheLargestAndTheSmallest) {
  for (const std::string& text : codec_texts()) {
    if (!text.starts_with("redsync-q")) continue;
    Group group({.codec = text, .shape = {1000}});
    double last = 0.0;
    for (std::uint64_t step = 0; step < 6; ++step) {
      ASSERT_TRUE(group.step(gradients(1000, 1, step, run_seed()), step).is_ok());
      const double value = read_f32(group.sent[0][0], 0);
      EXPECT_NE(value, 0.0) << text;
      EXPECT_LE(value * last, 0.0) << text << ": twice the same direction, step " << step;
      last = value;
    }
  }
}

}  // namespace
}  // namespace gradpress::test
