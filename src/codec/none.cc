#include <gradpress/codec.h>

#include <cmath>
#include <cstring>

#include "codec/codecs.h"
#include "codec/state.h"
#include "kernels/vector.h"
#include "spec/facts.h"

namespace gradpress::codec {

namespace {

/// No compression: the gradient's own bytes. Payload: n f32.
/// Passes NaN and infinity on as a raw all-reduce would; there is no residual they could poison.
class NoneCodec final : public Codec {
 public:
  explicit NoneCodec(const Spec& spec) : Codec(to_text(spec), traits_of(spec)) {}

  std::optional<double> contraction(const Shape& /*shape*/) const override { return 1.0; }
  std::optional<double> variance(const Shape& /*shape*/) const override { return 0.0; }
  std::size_t payload_bound(const Shape& shape, unsigned /*round*/) const override {
    return payload_bytes(Spec{}, shape);
  }

 private:
  std::unique_ptr<State> do_make_state(const StateOptions& options, bool feedback) const override {
    return std::make_unique<ResidualState>(options, feedback);
  }

  Result<std::size_t> do_encode(State& /*state*/, const EncodeArgs& args, std::span<std::byte> out,
                                std::span<std::size_t> shard_bytes) const override {
    if (!args.grad.empty()) std::memcpy(out.data(), args.grad.data(), args.grad.size_bytes());
    for (std::uint32_t index = 0; index < args.shards; ++index) {
      shard_bytes[index] = sizeof(float) * shard_range(args.grad.size(), args.shards, index).count;
    }
    return args.grad.size_bytes();
  }

  Status do_decode(State& /*state*/, const DecodeArgs& args, std::span<float> dst) const override {
    if (args.payload.size() != dst.size_bytes()) {
      return Status::error(Code::kCorruptPayload, name(), ": ", dst.size(), " elements come in ",
                           dst.size_bytes(), " B, got ", args.payload.size(), " B");
    }
    kernels::add_weighted(args.payload, args.weight, dst);
    return {};
  }
};

}  // namespace

std::unique_ptr<const Codec> make_none(const Spec& spec) {
  return std::make_unique<NoneCodec>(spec);
}

}  // namespace gradpress::codec
