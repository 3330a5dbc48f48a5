// Hostile payloads and hostile checkpoints for one codec, in the middle of an honest run: the codec
// is GRADPRESS_FUZZED_CODEC. The first bytes choose a shape, a step and what the rest is.
#include <gradpress/codec.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

using namespace gradpress;

/// What must never happen ends the run, so that libFuzzer keeps the input.
void require(bool holds) {
  if (!holds) std::abort();
}

const Codec* fuzzed_codec() {
  static const auto codec = make_codec(GRADPRESS_FUZZED_CODEC);
  return codec ? codec->get() : nullptr;
}

const std::array<Shape, 8>& shapes() {
  static const std::array<Shape, 8> all = {Shape{0},  Shape{1},    Shape{31},   Shape{32},
                                           Shape{33}, Shape{6, 7}, Shape{1, 9}, Shape{4, 3, 2, 2}};
  return all;
}

/// One worker's honest step. Returns the bytes its last round wrote.
std::vector<std::byte> honest_encode(const Codec& codec, State& state, std::uint64_t step) {
  std::vector<float> grad(state.shape().elements());
  for (std::size_t i = 0; i < grad.size(); ++i) {
    grad[i] = static_cast<float>(static_cast<int>((i * 29 + step * 17) % 64) - 32) / 4.0F;
  }
  std::vector<std::byte> reduced;
  for (unsigned round = 0; round < codec.traits().rounds; ++round) {
    std::vector<std::byte> out(codec.encode_bound(state.shape(), 1, round));
    const auto bytes =
        codec.encode(state, {.grad = grad, .step = step, .round = round, .reduced = reduced}, out);
    require(bytes.has_value());
    out.resize(*bytes);
    reduced = std::move(out);
  }
  return reduced;
}

void honest_step(const Codec& codec, State& state, std::uint64_t step) {
  const auto payload = honest_encode(codec, state, step);
  std::vector<float> dst(state.shape().elements());
  require(codec.decode(state, {.payload = payload, .step = step}, dst).is_ok());
  require(codec.finish(state, 1, dst).is_ok());
}

void require_finite_residual(const State& state) {
  std::vector<float> residual(state.shape().elements());
  state.materialise(residual);
  for (const float r : residual) require(std::isfinite(r));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Codec* const codec = fuzzed_codec();
  if (codec == nullptr || size < 2) return 0;
  const Shape& shape = shapes()[data[0] % shapes().size()];
  const std::uint64_t steps = data[0] / shapes().size() % 4;
  const bool as_extras = data[1] % 4 == 3;
  const auto bytes = std::as_bytes(std::span(data + 2, size - 2));
  // An allocation of exactly this length: one byte too far is seen.
  const std::vector<std::byte> hostile(bytes.begin(), bytes.end());

  const auto state = codec->make_state({.shape = shape, .seed = 7, .tensor = 3});
  require(state.has_value());
  for (std::uint64_t step = 0; step < steps; ++step) honest_step(*codec, **state, step);
  if (as_extras) {
    const auto before = (*state)->save_extras();
    const Status status = (*state)->load_extras(hostile);
    require(status.is_ok() || status.code() == Code::kCorruptPayload);
    if (!status.is_ok()) require((*state)->save_extras() == before);
    (void)honest_encode(*codec, **state, steps);
    return 0;
  }
  (void)honest_encode(*codec, **state, steps);
  std::vector<float> dst(shape.elements(), 0.5F);
  const Status status = codec->decode(**state, {.payload = hostile, .step = steps}, dst);
  require(status.is_ok() || status.code() == Code::kCorruptPayload);
  require_finite_residual(**state);
  // Whatever was accepted, the step can be ended and the next one begun.
  if (status.is_ok()) require(codec->finish(**state, 1, dst).is_ok());
  std::vector<std::byte> out(codec->encode_bound(shape));
  const std::vector<float> zeros(shape.elements());
  (void)codec->encode(**state, {.grad = zeros, .step = steps + 1}, out);
  require_finite_residual(**state);
  return 0;
}
