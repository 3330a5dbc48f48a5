#include "plan/trace.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "plan/field.h"

namespace gradpress::plan {

namespace {

constexpr std::string_view kFormat = "gradpress-trace-1";

Result<Shape> read_shape(const Field& field) {
  const auto length = field.length();
  if (!length) return tl::unexpected(length.error());
  std::vector<std::uint64_t> dims;
  for (std::size_t i = 0; i < *length; ++i) {
    const auto dim = field.at(i).whole(1, kMaxElements);
    if (!dim) return tl::unexpected(dim.error());
    dims.push_back(*dim);
  }
  auto shape = Shape::from(dims);
  if (!shape) return field.wrong("at most 8 dimensions");
  return shape;
}

Result<Tensor> read_tensor(const Field& field) {
  Tensor tensor;
  const auto name_field = field.at("name");
  if (!name_field) return tl::unexpected(name_field.error());
  auto name = name_field->text();
  if (!name) return tl::unexpected(name.error());
  tensor.name = std::move(*name);

  const auto shape_field = field.at("shape");
  if (!shape_field) return tl::unexpected(shape_field.error());
  const auto shape = read_shape(*shape_field);
  if (!shape) return tl::unexpected(shape.error());
  tensor.shape = *shape;

  const auto elements_field = field.at("elements");
  if (!elements_field) return tl::unexpected(elements_field.error());
  const auto elements = elements_field->whole(1, kMaxElements);
  if (!elements) return tl::unexpected(elements.error());
  if (*elements != shape->elements()) {
    return elements_field->wrong(std::to_string(shape->elements()) + " elements, as in shape " +
                                 shape->to_string());
  }
  tensor.elements = *elements;

  const auto gap_field = field.at("ready_gap_us");
  if (!gap_field) return tl::unexpected(gap_field.error());
  const auto gap = gap_field->number(0.0);
  if (!gap) return tl::unexpected(gap.error());
  tensor.ready_gap_us = *gap;
  return tensor;
}

Status read_tensors(const Field& field, std::vector<Tensor>& tensors) {
  const auto length = field.length();
  if (!length) return length.error();
  if (*length == 0) return field.wrong("at least one tensor").value();
  if (*length > kMaxTensors) {
    return field.wrong("at most " + std::to_string(kMaxTensors) + " tensors").value();
  }
  std::unordered_set<std::string_view> names;
  tensors.reserve(*length);
  for (std::size_t i = 0; i < *length; ++i) {
    auto tensor = read_tensor(field.at(i));
    if (!tensor) return tensor.error();
    tensors.push_back(std::move(*tensor));
    if (!names.insert(tensors.back().name).second) {
      return field.at(i).wrong("a name that no other tensor has").value();
    }
  }
  return {};
}

}  // namespace

double Trace::backward_us() const {
  return std::accumulate(tensors.begin(), tensors.end(), 0.0,
                         [](double sum, const Tensor& t) { return sum + t.ready_gap_us; });
}

std::uint64_t Trace::elements() const {
  return std::accumulate(tensors.begin(), tensors.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Tensor& t) { return sum + t.elements; });
}

Trace Trace::largest(std::size_t count) const {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, [this](std::size_t a, std::size_t b) {
    if (tensors[a].elements != tensors[b].elements)
      return tensors[a].elements > tensors[b].elements;
    return a > b;
  });
  order.resize(std::min(count, order.size()));
  std::vector<bool> kept(tensors.size(), false);
  for (const std::size_t index : order) kept[index] = true;
  Trace cut{.model = model, .source = source, .forward_us = forward_us, .tensors = {}};
  double gap = 0.0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    gap += tensors[i].ready_gap_us;
    if (!kept[i]) continue;
    cut.tensors.push_back(tensors[i]);
    cut.tensors.back().ready_gap_us = gap;
    gap = 0.0;
  }
  // What was left after the last kept tensor happens before it: no time is lost.
  if (!cut.tensors.empty()) cut.tensors.back().ready_gap_us += gap;
  return cut;
}

Result<Trace> read_trace(const std::string& file) {
  const auto json = read_format(file, kFormat);
  if (!json) return tl::unexpected(json.error());
  const Field root(*json, file);
  Trace trace;
  const auto model_field = root.at("model");
  if (!model_field) return tl::unexpected(model_field.error());
  auto model = model_field->text();
  if (!model) return tl::unexpected(model.error());
  trace.model = std::move(*model);
  if (root.has("source")) {
    auto source = root.at("source")->text();
    if (!source) return tl::unexpected(source.error());
    trace.source = std::move(*source);
  }
  if (root.has("forward_us")) {
    const auto forward = root.at("forward_us")->number(0.0);
    if (!forward) return tl::unexpected(forward.error());
    trace.forward_us = *forward;
  }
  const auto tensors_field = root.at("tensors");
  if (!tensors_field) return tl::unexpected(tensors_field.error());
  const Status status = read_tensors(*tensors_field, trace.tensors);
  if (!status.is_ok()) return tl::unexpected(status);
  return trace;
}

Status write_trace(const std::string& file, const Trace& trace) {
  Json json = {{"format", kFormat}, {"model", trace.model}};
  if (!trace.source.empty()) json["source"] = trace.source;
  if (trace.forward_us > 0.0) json["forward_us"] = trace.forward_us;
  json["tensors"] = Json::array();
  for (const Tensor& tensor : trace.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"shape", tensor.shape.dims()},
                               {"elements", tensor.elements},
                               {"ready_gap_us", tensor.ready_gap_us}});
  }
  return write_json(file, json);
}

}  // namespace gradpress::plan
