// Engines: what runs between two steps.
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "engine.h"
#include "plan/plan_file.h"
#include "spec/facts.h"

namespace gradpress::c_api {

namespace {

/// ACP-SGD sends P in one step and Q in the next, whether or not its plan has two programs.
unsigned kinds_of(const Plan& plan) {
  for (const PlannedTensor& tensor : plan.tensors) {
    const codec::Facts* const facts = codec::facts_of_text(tensor.codec);
    if (facts != nullptr && facts->alternates()) return facts->cycle;
  }
  return plan.alternates ? 2 : 1;
}

Json describe(const Engine& engine) {
  const Plan plan = engine.plan();
  Json tensors = Json::array();
  for (const PlannedTensor& tensor : plan.tensors) {
    tensors.push_back(
        {{"name", tensor.name}, {"elements", tensor.shape.elements()}, {"codec", tensor.codec}});
  }
  return {{"running", engine.running()},
          {"summary", engine.summary()},
          {"plan", plan::to_json(plan)},
          {"kinds", kinds_of(plan)},
          {"tensors", std::move(tensors)}};
}

}  // namespace

}  // namespace gradpress::c_api

using namespace gradpress::c_api;  // the functions below are its outside

extern "C" {

gradpress_code gradpress_engine_set_codec(gradpress_engine* engine, const char* codec,
                                          gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    if (auto status = check_given(codec, "codec"); !status) return status;
    return engine->session->set_codec(codec);
  });
}

gradpress_code gradpress_engine_set_baseline(gradpress_engine* engine, double us,
                                             gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    if (!std::isfinite(us) || us < 0.0) {
      return wrong("us: wanted a number of microseconds of 0 or more, got ", us);
    }
    engine->session->set_baseline_us(us);
    return {};
  });
}

gradpress_code gradpress_engine_scale_residuals(gradpress_engine* engine, double factor,
                                                gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    return engine->session->scale_residuals(factor);
  });
}

gradpress_code gradpress_engine_residual(gradpress_engine* engine, uint32_t tensor, float* out,
                                         uint64_t elements, gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    if (auto status = check_list(out, elements, "out"); !status) return status;
    return engine->session->copy_residual(tensor, {out, elements});
  });
}

gradpress_code gradpress_engine_add_residual(gradpress_engine* engine, uint32_t tensor,
                                             const float* residual, uint64_t elements,
                                             gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    if (auto status = check_list(residual, elements, "residual"); !status) return status;
    return engine->session->add_residual(tensor, {residual, elements});
  });
}

gradpress_code gradpress_engine_checkpoint(gradpress_engine* engine, gradpress_text** bytes,
                                           gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    if (auto status = check_given(bytes, "bytes"); !status) return status;
    const auto saved = engine->session->checkpoint();
    if (!saved) return saved.error();
    *bytes = make_text(*saved);
    return {};
  });
}

gradpress_code gradpress_checkpoint_residuals(const void* bytes, size_t size,
                                              gradpress_text** residuals, gradpress_text** error) {
  if (residuals != nullptr) *residuals = nullptr;
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_list(bytes, size, "bytes"); !status) return status;
    if (auto status = check_given(residuals, "residuals"); !status) return status;
    const auto saved =
        gradpress::checkpoint_residuals({static_cast<const std::byte*>(bytes), size});
    if (!saved) return saved.error();
    std::string all;
    for (const std::vector<float>& one : *saved) {
      all.append(reinterpret_cast<const char*>(one.data()), one.size() * sizeof(float));
    }
    *residuals = make_text(std::move(all));
    return {};
  });
}

gradpress_code gradpress_engine_restore(gradpress_engine* engine, const void* bytes, size_t size,
                                        gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    if (auto status = check_list(bytes, size, "bytes"); !status) return status;
    return engine->session->restore({static_cast<const std::byte*>(bytes), size});
  });
}

gradpress_code gradpress_engine_describe(gradpress_engine* engine, gradpress_text** description,
                                         gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    if (auto status = check_given(description, "description"); !status) return status;
    gradpress::Json json;
    auto status = engine->session->between_steps([&](const gradpress::Engine& running) {
      json = describe(running);
      return gradpress::Status();
    });
    if (!status) return status;
    *description = text_of(json);
    return {};
  });
}
}
