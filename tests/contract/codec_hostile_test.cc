// Wrong calls and hostile bytes: refused with a reason, and never a byte outside the spans.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "contract/every_codec.h"

namespace gradpress::test {
namespace {

class CodecHostile : public EveryCodec {};
GRADPRESS_FOR_EVERY_CODEC(CodecHostile);

/// One worker's payload of a step that is encoded and not yet finished, so that it can be decoded.
struct Made {
  std::unique_ptr<Group> group;
  std::vector<std::byte> payload;
  std::uint64_t step = 0;
  std::size_t elements = 0;

  const Codec& codec() const { return group->codec(); }
};

Made make(const std::string& text, const Shape& shape, std::uint64_t steps, std::uint64_t seed) {
  Made made;
  made.group = std::make_unique<Group>(GroupOptions{.codec = text, .shape = shape});
  made.elements = shape.elements();
  for (; made.step + 1 < steps; ++made.step) {
    const auto grads = gradients(made.elements, 1, made.step, seed);
    EXPECT_TRUE(made.group->step(grads, made.step).is_ok());
  }
  const auto grads = gradients(made.elements, 1, made.step, seed);
  EXPECT_TRUE(made.group->encode_step(grads, made.step).is_ok());
  made.payload = made.group->sent[0][0];
  return made;
}

/// A destination between two fences.
class Fenced {
 public:
  explicit Fenced(std::size_t elements) : values_(elements + 2 * kFence, kPost) {
    std::ranges::fill(dst(), 0.5F);
  }
  std::span<float> dst() { return std::span(values_).subspan(kFence, values_.size() - 2 * kFence); }
  bool fences_stand() const {
    const auto is_post = [](float v) { return v == kPost; };
    return std::all_of(values_.begin(), values_.begin() + kFence, is_post) &&
           std::all_of(values_.end() - kFence, values_.end(), is_post);
  }

 private:
  static constexpr int kFence = 64;
  static constexpr float kPost = -123.25F;
  std::vector<float> values_;
};

Status decode(Made& made, std::span<const std::byte> payload, Fenced& fenced) {
  // A copy on the heap of exactly this length: a sanitizer then sees every read behind the end.
  const std::vector<std::byte> exact(payload.begin(), payload.end());
  return made.codec().decode(made.group->state(0), {.payload = exact, .step = made.step},
                             fenced.dst());
}

TEST_P(CodecHostile, DecodeAddsWeightTimesThePayload) {
  for (const Shape& shape : {Shape{33}, Shape{1000}, Shape{12, 9}, Shape{1}}) {
    SCOPED_TRACE(shape.to_string());
    Made made = make(text(), shape, 2, seed_);
    std::vector<float> once(made.elements, 0.0F);
    ASSERT_TRUE(
        made.codec()
            .decode(made.group->state(0), {.payload = made.payload, .step = made.step}, once)
            .is_ok());
    const auto start = gradients(made.elements, 1, 50, seed_).front();
    std::vector<float> dst = start;
    // A twin, for a state need not decode one step's payload twice.
    Made twin = make(text(), shape, 2, seed_);
    ASSERT_TRUE(made.codec()
                    .decode(twin.group->state(0),
                            {.payload = made.payload, .step = made.step, .weight = -0.375F}, dst)
                    .is_ok());
    double largest = 0.0;
    for (const float v : once) largest = std::max(largest, std::fabs(double{v}));
    for (std::size_t i = 0; i < dst.size(); ++i) {
      ASSERT_NEAR(dst[i], start[i] - 0.375 * once[i],
                  1e-6 * (std::fabs(start[i]) + std::fabs(once[i]) + largest))
          << "element " << i;
    }
  }
}

TEST_P(CodecHostile, DecodedValuesAreThoseTheWireFormatNames) {
  for (const Shape& shape : {Shape{1}, Shape{35}, Shape{1029}}) {
    Made made = make(text(), shape, 2, seed_);
    const Words words({.seed = 1, .tensor = 3, .step = made.step, .site = 0, .shard = 0});
    const auto expected = read_payload(*codec::parse_spec(text()), made.group->carrying()[0][0],
                                       made.elements, words);
    const auto rounding =
        payload_rounding(*codec::parse_spec(text()), made.group->carrying()[0][0], made.elements);
    std::vector<float> dst(made.elements, 0.0F);
    ASSERT_TRUE(made.codec()
                    .decode(made.group->state(0), {.payload = made.payload, .step = made.step}, dst)
                    .is_ok());
    for (std::size_t i = 0; i < made.elements; ++i) {
      ASSERT_NEAR(dst[i], expected[i], 1e-6 * std::fabs(expected[i]) + rounding[i])
          << shape.to_string() << " element " << i;
    }
  }
}

TEST_P(CodecHostile, WrongLengthsAreRefusedAndLeaveTheDestinationAlone) {
  for (const Shape& shape : {Shape{33}, Shape{12, 9}, Shape{1}, Shape{0}}) {
    Made made = make(text(), shape, 2, seed_);
    const bool fixed = made.codec().traits().fixed_size;
    const std::size_t right = made.payload.size();
    std::vector<std::size_t> lengths = {right + 1, right + 2, right + 3};
    lengths.push_back(made.codec().payload_bound(shape) + 8 + right);
    if (right > 0) lengths.push_back(right - 1);
    if (fixed) {
      lengths.push_back(right + 4);
      lengths.push_back(right + 8);
      if (right > 0) lengths.push_back(0);
      if (right > 4) lengths.push_back(right - 4);
    }
    for (const std::size_t length : lengths) {
      std::vector<std::byte> payload = made.payload;
      payload.resize(length);
      Fenced fenced(made.elements);
      const Status status = decode(made, payload, fenced);
      EXPECT_EQ(status.code(), Code::kCorruptPayload)
          << shape.to_string() << ": " << length << " B instead of " << right << ": "
          << status.to_string();
      EXPECT_TRUE(fenced.fences_stand());
    }
  }
}

TEST_P(CodecHostile, EveryByteFlippedIsRefusedOrDecodesToFiniteNumbers) {
  for (const Shape& shape : {Shape{35}, Shape{6, 7}, Shape{1}}) {
    Made made = make(text(), shape, 3, seed_);
    for (std::size_t at = 0; at < made.payload.size(); ++at) {
      for (const unsigned flip : {0xFFU, 0x80U, 0x7FU, 0x01U, 0x40U}) {
        std::vector<std::byte> payload = made.payload;
        payload[at] ^= static_cast<std::byte>(flip);
        Fenced fenced(made.elements);
        const Status status = decode(made, payload, fenced);
        ASSERT_TRUE(fenced.fences_stand()) << "byte " << at << " ^ " << flip;
        ASSERT_TRUE(status.is_ok() || status.code() == Code::kCorruptPayload) << status.to_string();
        if (text() == "none") continue;  // passes every bit pattern on, as an all-reduce would
        for (const float v : fenced.dst()) {
          ASSERT_TRUE(std::isfinite(v)) << "byte " << at << " ^ " << flip << " decoded to " << v;
        }
      }
    }
  }
}

TEST_P(CodecHostile, BytesOfAnyValueAtAnyLengthNeverEscapeTheDestination) {
  for (const Shape& shape : {Shape{35}, Shape{6, 7}, Shape{1}, Shape{0}}) {
    Made made = make(text(), shape, 2, seed_);
    const std::size_t longest = made.codec().payload_bound(shape) + 9;
    for (const unsigned fill : {0x00U, 0xFFU, 0x7FU, 0x80U, 0x01U}) {
      for (std::size_t length = 0; length <= longest; ++length) {
        const std::vector<std::byte> payload(length, static_cast<std::byte>(fill));
        Fenced fenced(made.elements);
        const Status status = decode(made, payload, fenced);
        ASSERT_TRUE(fenced.fences_stand()) << length << " B of " << fill;
        ASSERT_TRUE(status.is_ok() || status.code() == Code::kCorruptPayload) << status.to_string();
      }
    }
  }
}

TEST_P(CodecHostile, AfterHostileBytesTheNextStepIsAsIfTheyHadNeverCome) {
  for (const Shape& shape : {Shape{35}, Shape{6, 7}}) {
    Made made = make(text(), shape, 3, seed_);
    Made twin = make(text(), shape, 3, seed_);
    const auto residual = made.group->residual(0);
    Fenced fenced(made.elements);
    const std::vector<std::byte> hostile(made.payload.size() + 1, std::byte{0xFF});
    EXPECT_FALSE(decode(made, hostile, fenced).is_ok());
    EXPECT_EQ(made.group->residual(0), residual);
    for (Made* one : {&made, &twin}) {
      Fenced honest(one->elements);
      ASSERT_TRUE(decode(*one, one->payload, honest).is_ok());
      ASSERT_TRUE(one->codec().finish(one->group->state(0), 1, honest.dst()).is_ok());
    }
    const auto grads = gradients(made.elements, 1, 3, seed_);
    ASSERT_TRUE(made.group->step(grads, 3).is_ok());
    ASSERT_TRUE(twin.group->step(grads, 3).is_ok());
    EXPECT_EQ(made.group->sent, twin.group->sent);
    EXPECT_EQ(made.group->results, twin.group->results);
  }
}

/// kInvalidArgument with both numbers in the message.
void expect_refused(const Result<std::size_t>& result, std::size_t wanted, std::size_t given) {
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), Code::kInvalidArgument);
  const std::string& message = result.error().message();
  EXPECT_NE(message.find(std::to_string(wanted)), std::string::npos) << wanted << ": " << message;
  EXPECT_NE(message.find(std::to_string(given)), std::string::npos) << given << ": " << message;
}

TEST_P(CodecHostile, WrongSizesAreRefusedWithTheWantedAndTheGivenNumber) {
  const auto codec = *make_codec(text());
  const Shape shape{257};
  const auto state = *codec->make_state({.shape = shape});
  const auto grad = gradients(259, 1, 0, seed_).front();
  const std::span<const float> right(grad.data(), 257);
  std::vector<std::byte> out(codec->encode_bound(shape, 7) + 4096);
  std::vector<std::size_t> sizes(7);
  expect_refused(codec->encode(*state, {.grad = std::span(grad).first(259)}, out), 257, 259);
  expect_refused(codec->encode(*state, {.grad = right, .shards = 5}, out, std::span(sizes)), 5, 7);
  expect_refused(
      codec->encode(*state, {.grad = right, .shards = 0}, out, std::span(sizes).first(0)), 0, 0);
  expect_refused(codec->encode(*state, {.grad = right, .round = 2}, out), codec->traits().rounds,
                 2);
  const std::size_t need = codec->encode_bound(shape);
  if (need > 0) {
    expect_refused(codec->encode(*state, {.grad = right}, std::span(out).first(need - 1)), need,
                   need - 1);
  }
  if (!codec->traits().shardable) {
    EXPECT_EQ(codec->encode(*state, {.grad = right, .shards = 7}, out, sizes).error().code(),
              Code::kInvalidArgument);
  }
  EXPECT_EQ(codec->finish(*state, 0, {}).code(), Code::kInvalidArgument);
  std::vector<float> residual(257);
  state->materialise(residual);
  EXPECT_EQ(residual, std::vector<float>(257, 0.0F)) << "a refused call left something behind";
}

TEST_P(CodecHostile, SecondRoundsRefuseAReducedPayloadOfTheWrongLength) {
  const auto codec = *make_codec(text());
  if (codec->traits().rounds < 2) return;
  const Shape shape{12, 9};
  const auto state = *codec->make_state({.shape = shape});
  const auto grad = gradients(108, 1, 0, seed_).front();
  std::vector<std::byte> out(4096);
  const auto first = codec->encode(*state, {.grad = grad}, out);
  ASSERT_TRUE(first.has_value());
  for (const std::size_t length : {std::size_t{0}, *first - 1, *first + 4}) {
    const std::vector<std::byte> reduced(length);
    std::vector<std::byte> second(4096);
    const auto result =
        codec->encode(*state, {.grad = grad, .round = 1, .reduced = reduced}, second);
    EXPECT_FALSE(result.has_value()) << length << " B of reduced payload";
  }
  const std::vector<std::byte> poison(*first, std::byte{0xFF});
  std::vector<std::byte> second(4096);
  EXPECT_FALSE(
      codec->encode(*state, {.grad = grad, .round = 1, .reduced = poison}, second).has_value());
  std::vector<float> residual(108);
  state->materialise(residual);
  for (const float r : residual) ASSERT_TRUE(std::isfinite(r));
}

TEST_P(CodecHostile, TheStateOfAnotherCodecIsRefused) {
  const auto codec = *make_codec(text());
  const auto grad = gradients(64, 1, 0, seed_).front();
  for (const std::string& other : codec_texts()) {
    if (other == text()) continue;
    const auto maker = *make_codec(other);
    const auto state = *maker->make_state({.shape = {64}});
    std::vector<std::byte> out(codec->encode_bound({64}));
    const auto result = codec->encode(*state, {.grad = grad}, out);
    ASSERT_FALSE(result.has_value()) << text() << " took the state of " << other;
    EXPECT_EQ(result.error().code(), Code::kInvalidArgument);
    std::vector<float> dst(64);
    EXPECT_EQ(codec->decode(*state, {.payload = out}, dst).code(), Code::kInvalidArgument);
    EXPECT_EQ(codec->finish(*state, 1, dst).code(), Code::kInvalidArgument);
    EXPECT_NE(result.error().message().find(maker->name()), std::string::npos)
        << result.error().message();
  }
}

}  // namespace
}  // namespace gradpress::test
