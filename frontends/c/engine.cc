// Engines: gradients in, events out. What runs between steps is in engine_state.cc.
#include "engine.h"

#include <chrono>
#include <optional>
#include <span>

#include "base/json.h"
#include "engine_options.h"
#include "group.h"

namespace gradpress::c_api {

namespace {

using engine::ElementType;
using engine::SessionEvent;

Result<ElementType> element_type(gradpress_type type) {
  switch (type) {
    case GRADPRESS_FLOAT32:
      return ElementType::kFloat32;
    case GRADPRESS_FLOAT16:
      return ElementType::kFloat16;
    case GRADPRESS_BFLOAT16:
      return ElementType::kBfloat16;
    case GRADPRESS_FLOAT64:
      return ElementType::kFloat64;
    default:
      return tl::unexpected(
          wrong("type: wanted GRADPRESS_FLOAT32, GRADPRESS_FLOAT16, GRADPRESS_BFLOAT16 or "
                "GRADPRESS_FLOAT64, got ",
                type));
  }
}

Json json_of(const EngineStep& step) {
  return {{"event", "step"},
          {"step", step.step},
          {"finite", step.finite},
          {"sent_bytes", step.sent.intra + step.sent.inter},
          {"promised_bytes", step.promised.intra + step.promised.inter},
          {"exposed_us", step.exposed_us},
          {"unused", step.unused},
          {"suspended", step.rests},
          {"baseline_steps", step.baseline_steps}};
}

Json json_of(const SessionEvent& event) {
  switch (event.kind) {
    case SessionEvent::Kind::kStep: {
      Json step = json_of(event.step);
      step["running"] = event.running;
      return step;
    }
    case SessionEvent::Kind::kFailed:
      return {{"event", "failed"},
              {"code", code_of(event.failure.code())},
              {"message", event.failure.message()}};
    case SessionEvent::Kind::kLog:
      return {{"event", "log"}, {"line", event.line}};
    case SessionEvent::Kind::kClosed:
      break;
  }
  return {{"event", "closed"}};
}

Result<std::unique_ptr<gradpress_engine>> make_engine(World world, const char* tensors,
                                                      const char* options) {
  auto listed = engine_tensors(tensors);
  if (!listed) return tl::unexpected(listed.error());
  auto given = session_options(options, {.tensors = *listed,
                                         .machines = world.machines,
                                         .workers_per_machine = world.workers_per_machine});
  if (!given) return tl::unexpected(given.error());
  auto session = engine::Session::make(std::move(world), std::move(*listed), std::move(*given));
  if (!session) return tl::unexpected(session.error());
  auto handle = std::make_unique<gradpress_engine>();
  handle->session = std::move(*session);
  return handle;
}

}  // namespace

}  // namespace gradpress::c_api

using namespace gradpress::c_api;  // the functions below are its outside

extern "C" {

gradpress_code gradpress_engine_make(gradpress_group* group, const char* tensors,
                                     const char* options, gradpress_engine** engine,
                                     gradpress_text** error) {
  if (engine != nullptr) *engine = nullptr;
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(group, "group"); !status) return status;
    const std::unique_ptr<gradpress_group> taken(group);
    if (auto status = check_given(engine, "engine"); !status) return status;
    auto made = make_engine(std::move(taken->world), tensors, options);
    if (!made) return made.error();
    *engine = made->release();
    return {};
  });
}

void gradpress_engine_free(gradpress_engine* engine) {
  if (!is_ours(engine)) return;
  (void)guarded(nullptr, [&] {
    const std::unique_ptr<gradpress_engine> end(engine);
    return gradpress::Status();
  });
}

void gradpress_engine_close(gradpress_engine* engine) {
  if (!is_ours(engine)) return;
  (void)guarded(nullptr, [&] {
    engine->session->close();
    return gradpress::Status();
  });
}

gradpress_code gradpress_engine_layout(gradpress_engine* engine, const uint32_t* tensors,
                                       const uint64_t* offsets, size_t count, uint32_t* layout,
                                       gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    if (auto status = check_list(tensors, count, "tensors"); !status) return status;
    if (auto status = check_list(offsets, count, "offsets"); !status) return status;
    if (auto status = check_given(layout, "layout"); !status) return status;
    const auto number = engine->session->add_layout({tensors, count}, {offsets, count});
    if (!number) return number.error();
    *layout = *number;
    return {};
  });
}

gradpress_code gradpress_engine_push(gradpress_engine* engine, uint32_t layout, void* memory,
                                     gradpress_type type, int32_t last, gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    const auto element = element_type(type);
    if (!element) return element.error();
    return engine->session->push(layout, memory, *element, last != 0);
  });
}

gradpress_code gradpress_engine_ready(gradpress_engine* engine, uint32_t tensor, void* memory,
                                      uint64_t elements, gradpress_type type,
                                      gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    const auto element = element_type(type);
    if (!element) return element.error();
    return engine->session->ready(tensor, memory, elements, *element);
  });
}

gradpress_code gradpress_engine_unused(gradpress_engine* engine, const uint32_t* tensors,
                                       size_t count, gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    if (auto status = check_list(tensors, count, "tensors"); !status) return status;
    return engine->session->mark_unused({tensors, count});
  });
}

gradpress_code gradpress_engine_end_step(gradpress_engine* engine, gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    return engine->session->end_step();
  });
}

gradpress_code gradpress_engine_wait(gradpress_engine* engine, gradpress_text** report,
                                     gradpress_text** error) {
  return guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    const auto step = engine->session->wait();
    if (!step) return step.error();
    if (report != nullptr) *report = text_of(json_of(*step));
    return {};
  });
}

gradpress_code gradpress_engine_next(gradpress_engine* engine, int64_t timeout_ms,
                                     gradpress_text** event, gradpress_text** error) {
  bool late = false;
  const gradpress_code code = guarded(error, [&]() -> gradpress::Status {
    if (auto status = check_handle(engine, "engine"); !status) return status;
    if (auto status = check_given(event, "event"); !status) return status;
    // More than a day is for ever.
    constexpr int64_t kLongest = 86'400'000;
    std::optional<std::chrono::milliseconds> limit;
    if (timeout_ms >= 0 && timeout_ms <= kLongest) limit = std::chrono::milliseconds(timeout_ms);
    const auto next = engine->session->next(limit);
    late = !next;
    if (next) *event = text_of(json_of(*next));
    return {};
  });
  if (!late) return code;
  return report(GRADPRESS_TIMED_OUT,
                "no event within " + std::to_string(timeout_ms) + " ms: ask again", error);
}
}
