// Codecs: one tensor's, with its state.
#include <gradpress/codec.h>

#include <memory>
#include <span>

#include "guard.h"
#include "options.h"
#include "spec/facts_json.h"

struct gradpress_codec {
  gradpress::c_api::Owner owner = {};
  std::unique_ptr<const gradpress::Codec> codec = {};
  std::unique_ptr<gradpress::State> state = {};
  std::uint32_t first_shard = 0;
};

namespace gradpress::c_api {

namespace {

Result<StateOptions> state_options(const char* text, const Shape& shape) {
  const auto json = parse_json(text, "options", Json::object());
  if (!json) return tl::unexpected(json.error());
  const plan::Field object(*json, "options");
  StateOptions options{.shape = shape};
  OptionReader reader(object);
  reader.read("seed", options.seed);
  reader.read("tensor", options.tensor);
  reader.read_whole("site", options.site);
  reader.read_whole("first_shard", options.first_shard);
  reader.read_whole("source", options.source);
  reader.read("feedback", options.feedback);
  if (Status status = reader.finish(); !status) return tl::unexpected(status);
  return options;
}

Result<std::unique_ptr<gradpress_codec>> make_handle(const char* text,
                                                     std::span<const std::uint64_t> dims,
                                                     const char* options) {
  const auto shape = Shape::from(dims);
  if (!shape) return tl::unexpected(shape.error());
  auto given = state_options(options, *shape);
  if (!given) return tl::unexpected(given.error());
  auto codec = make_codec(text);
  if (!codec) return tl::unexpected(codec.error());
  auto state = (*codec)->make_state(*given);
  if (!state) return tl::unexpected(state.error());
  auto handle = std::make_unique<gradpress_codec>();
  handle->codec = std::move(*codec);
  handle->state = std::move(*state);
  handle->first_shard = given->first_shard;
  return handle;
}

Json describe(const gradpress_codec& one) {
  const Traits& traits = one.codec->traits();
  return {{"name", one.codec->name()},
          {"rounds", traits.rounds},
          {"reducible", traits.reducible},
          {"payload_type", type_name(traits.payload_type)},
          {"fixed_size", traits.fixed_size},
          {"feedback", one.state->has_feedback()},
          {"combine", traits.combine == Combine::kVote ? "vote" : "mean"}};
}

/// The handle, and that `elements` are its tensor's.
Status check_tensor(const gradpress_codec* codec, const float* values, std::uint64_t elements,
                    std::string_view name) {
  if (Status status = check_handle(codec, "codec"); !status) return status;
  if (Status status = check_list(values, elements, name); !status) return status;
  const std::uint64_t wanted = codec->state->shape().elements();
  if (elements == wanted) return {};
  return wrong(name, ": wanted ", wanted, " elements, got ", elements);
}

}  // namespace

}  // namespace gradpress::c_api

using namespace gradpress::c_api;  // the functions below are its outside

extern "C" {

gradpress_code gradpress_codec_make(const char* codec, const uint64_t* dims, size_t count_of_dims,
                                    const char* options, gradpress_codec** out,
                                    gradpress_text** error) {
  if (out != nullptr) *out = nullptr;
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_given(codec, "codec"); !status) return status;
    if (auto status = check_list(dims, count_of_dims, "dims"); !status) return status;
    if (auto status = check_given(out, "out"); !status) return status;
    auto made = make_handle(codec, {dims, count_of_dims}, options);
    if (!made) return made.error();
    *out = made->release();
    return {};
  });
}

void gradpress_codec_free(gradpress_codec* codec) {
  if (!is_ours(codec)) return;
  const std::unique_ptr<gradpress_codec> end(codec);
}

gradpress_code gradpress_codec_describe(const gradpress_codec* codec, gradpress_text** description,
                                        gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(codec, "codec"); !status) return status;
    if (auto status = check_given(description, "description"); !status) return status;
    *description = text_of(describe(*codec));
    return {};
  });
}

size_t gradpress_codec_bound(const gradpress_codec* codec, uint32_t round) {
  if (!is_ours(codec) || round >= codec->codec->traits().rounds) return 0;
  return guarded_value<size_t>(
      0, [&] { return codec->codec->payload_bound(codec->state->shape(), round); });
}

gradpress_code gradpress_codec_encode(gradpress_codec* codec, const float* gradient,
                                      uint64_t elements, uint64_t step, uint32_t round,
                                      const void* reduced, size_t reduced_bytes, void* payload,
                                      size_t capacity, size_t* used, gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_tensor(codec, gradient, elements, "gradient"); !status) return status;
    if (auto status = check_list(reduced, reduced_bytes, "reduced"); !status) return status;
    if (auto status = check_list(payload, capacity, "payload"); !status) return status;
    if (auto status = check_given(used, "used"); !status) return status;
    const auto bytes =
        codec->codec->encode(*codec->state,
                             {.grad = {gradient, elements},
                              .step = step,
                              .round = round,
                              .reduced = {static_cast<const std::byte*>(reduced), reduced_bytes}},
                             std::span(static_cast<std::byte*>(payload), capacity));
    if (!bytes) return bytes.error();
    *used = *bytes;
    return {};
  });
}

gradpress_code gradpress_codec_decode(gradpress_codec* codec, const void* payload, size_t bytes,
                                      uint64_t step, float weight, float* out, uint64_t elements,
                                      gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_tensor(codec, out, elements, "out"); !status) return status;
    if (auto status = check_list(payload, bytes, "payload"); !status) return status;
    return codec->codec->decode(*codec->state,
                                {.payload = {static_cast<const std::byte*>(payload), bytes},
                                 .shard = codec->first_shard,
                                 .step = step,
                                 .weight = weight},
                                {out, elements});
  });
}

gradpress_code gradpress_codec_finish(gradpress_codec* codec, uint32_t workers, float* out,
                                      uint64_t elements, gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_tensor(codec, out, elements, "out"); !status) return status;
    return codec->codec->finish(*codec->state, workers, {out, elements});
  });
}

gradpress_code gradpress_codec_save_extras(const gradpress_codec* codec, gradpress_text** bytes,
                                           gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(codec, "codec"); !status) return status;
    if (auto status = check_given(bytes, "bytes"); !status) return status;
    *bytes = make_text(codec->state->save_extras());
    return {};
  });
}

gradpress_code gradpress_codec_load_extras(gradpress_codec* codec, const void* bytes, size_t size,
                                           gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(codec, "codec"); !status) return status;
    if (auto status = check_list(bytes, size, "bytes"); !status) return status;
    return codec->state->load_extras({static_cast<const std::byte*>(bytes), size});
  });
}

gradpress_code gradpress_codec_residual(const gradpress_codec* codec, float* out, uint64_t elements,
                                        gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_tensor(codec, out, elements, "out"); !status) return status;
    codec->state->materialise({out, elements});
    return {};
  });
}

gradpress_code gradpress_codec_load_residual(gradpress_codec* codec, const float* residual,
                                             uint64_t elements, gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_tensor(codec, residual, elements, "residual"); !status) return status;
    return codec->state->load({residual, elements});
  });
}

gradpress_code gradpress_codec_list(gradpress_text** list, gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_given(list, "list"); !status) return status;
    *list = text_of(gradpress::codec::list_of_codecs());
    return {};
  });
}

gradpress_code gradpress_codec_facts(const char* codec, gradpress_text** facts,
                                     gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_given(codec, "codec"); !status) return status;
    if (auto status = check_given(facts, "facts"); !status) return status;
    const auto spec = gradpress::codec::parse_spec(codec);
    if (!spec) return spec.error();
    *facts = text_of(gradpress::codec::to_json(*spec));
    return {};
  });
}

gradpress_code gradpress_codec_step_bytes(const char* codec, const uint64_t* dims,
                                          size_t count_of_dims, uint64_t* bytes,
                                          gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_given(codec, "codec"); !status) return status;
    if (auto status = check_list(dims, count_of_dims, "dims"); !status) return status;
    if (auto status = check_given(bytes, "bytes"); !status) return status;
    const auto shape = gradpress::Shape::from({dims, count_of_dims});
    if (!shape) return shape.error();
    const auto spec = gradpress::codec::parse_spec(codec);
    if (!spec) return spec.error();
    *bytes = gradpress::codec::step_bytes(*spec, *shape);
    return {};
  });
}

gradpress_code gradpress_codec_check(const char* codec, gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_given(codec, "codec"); !status) return status;
    const auto made = gradpress::make_codec(codec);
    return made ? gradpress::Status() : made.error();
  });
}
}
