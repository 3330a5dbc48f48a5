#include "engine_options.h"

#include <gradpress/plan.h>

#include <limits>
#include <utility>

#include "guard.h"
#include "options.h"
#include "plan/plan_reader.h"

namespace gradpress::c_api {

namespace {

Result<Shape> shape_of(const plan::Field& field) {
  const auto count = field.length();
  if (!count) return tl::unexpected(count.error());
  std::vector<std::uint64_t> extents;
  for (std::size_t i = 0; i < *count; ++i) {
    const auto extent = field.at(i).whole(0, kMaxElements);
    if (!extent) return tl::unexpected(extent.error());
    extents.push_back(*extent);
  }
  if (const auto shape = Shape::from(extents)) return *shape;
  // More extents than a shape has leave a flat tensor, which low-rank codecs send dense.
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : extents) {
    if (extent != 0 && elements > kMaxElements / extent) return field.wrong("fewer elements");
    elements *= extent;
  }
  return Shape::flat(elements);
}

Result<EngineTensor> tensor_of(const plan::Field& field) {
  EngineTensor tensor;
  OptionReader reader(field);
  bool has_shape = false;
  reader.read("name", tensor.name);
  reader.with("shape", [&](const plan::Field& extents) {
    const auto shape = shape_of(extents);
    if (!shape) return shape.error();
    tensor.shape = *shape;
    has_shape = true;
    return Status();
  });
  if (Status status = reader.finish(); !status) return tl::unexpected(status);
  if (tensor.name.empty() || !has_shape) return field.wrong("an object with name and shape");
  return tensor;
}

Status read_rules(const plan::Field& field, std::vector<CodecRule>& rules) {
  const auto count = field.length();
  if (!count) return count.error();
  for (std::size_t i = 0; i < *count; ++i) {
    const plan::Field rule = field.at(i);
    const auto parts = rule.length();
    if (!parts || *parts != 2) return rule.wrong("a list [pattern, codec]").value();
    auto pattern = rule.at(0).text();
    if (!pattern) return pattern.error();
    auto codec = rule.at(1).text();
    if (!codec) return codec.error();
    rules.push_back({.pattern = std::move(*pattern), .codec = std::move(*codec)});
  }
  return {};
}

Status read_momentum(const plan::Field& field, std::optional<MomentumCorrection>& momentum) {
  MomentumCorrection read;
  OptionReader reader(field);
  reader.read("momentum", read.momentum);
  reader.read("nesterov", read.nesterov);
  reader.read("masking", read.masking);
  reader.read("clip_norm", read.clip_norm);
  momentum = read;
  return reader.finish();
}

Status read_auto(const plan::Field& field, AutoOptions& automatic) {
  OptionReader reader(field);
  reader.read("codecs", automatic.codecs);
  reader.read_whole("raw_steps", automatic.raw_steps, 1);
  reader.read_whole("window", automatic.window, 1);
  reader.read_whole("drift_interval", automatic.drift_interval, 1);
  reader.read("drift_factor", automatic.drift_factor);
  reader.read("min_gain", automatic.min_gain);
  reader.read("settle_steps", automatic.settle_steps);
  reader.read("cache", automatic.cache);
  return reader.finish();
}

Status read_plan(const plan::Field& field, const EngineTarget& target, std::optional<Plan>& plan) {
  PlanTarget wanted{.machines = target.machines, .workers_per_machine = target.workers_per_machine};
  for (const EngineTensor& tensor : target.tensors) {
    wanted.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
  }
  auto read = plan::plan_from_json(field.json(), "options: plan", wanted);
  if (!read) return read.error();
  plan = std::move(*read);
  return {};
}

}  // namespace

Result<std::vector<EngineTensor>> engine_tensors(const char* text) {
  if (Status status = check_given(text, "tensors"); !status) return tl::unexpected(status);
  const auto json = parse_json(text, "tensors", Json::array());
  if (!json) return tl::unexpected(json.error());
  const plan::Field list(*json, "tensors");
  const auto count = list.length();
  if (!count) return tl::unexpected(count.error());
  std::vector<EngineTensor> tensors;
  for (std::size_t i = 0; i < *count; ++i) {
    auto tensor = tensor_of(list.at(i));
    if (!tensor) return tl::unexpected(tensor.error());
    tensors.push_back(std::move(*tensor));
  }
  return tensors;
}

Result<engine::SessionOptions> session_options(const char* text, const EngineTarget& target) {
  const auto json = parse_json(text, "options", Json::object());
  if (!json) return tl::unexpected(json.error());
  const plan::Field object(*json, "options");
  engine::SessionOptions options;
  EngineOptions& engine = options.engine;
  OptionReader reader(object);
  reader.read("codec", engine.codec);
  reader.with("rules", [&](const plan::Field& field) { return read_rules(field, engine.rules); });
  reader.with("plan",
              [&](const plan::Field& field) { return read_plan(field, target, engine.plan); });
  reader.with("momentum",
              [&](const plan::Field& field) { return read_momentum(field, engine.momentum); });
  reader.with("auto", [&](const plan::Field& field) { return read_auto(field, engine.automatic); });
  reader.read("feedback", engine.feedback);
  reader.read("pipelining", engine.pipelining);
  reader.read("fusion", engine.fusion);
  reader.read("sum_payloads", engine.sum_payloads);
  reader.read("strict", engine.strict);
  reader.read("allow_unused", engine.allow_unused);
  reader.read("least_elements", engine.least_elements);
  reader.read("bucket_bytes", engine.bucket_bytes);
  reader.read("raw_bucket_bytes", engine.raw_bucket_bytes);
  reader.read("seed", engine.seed);
  reader.read("return_unused", options.return_unused);
  if (Status status = reader.finish(); !status) return tl::unexpected(status);
  return options;
}

}  // namespace gradpress::c_api
