#include "module_layout.h"

#include <torch/torch.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

namespace gradpress::ddp {

namespace {

std::string described(const char* kind, const std::string& name, const at::Tensor& tensor) {
  std::ostringstream line;
  line << kind << ' ' << name << ": " << tensor.dtype() << ' ' << tensor.sizes() << '\n';
  return line.str();
}

Result<Shape> shape_of(const std::string& name, const at::Tensor& parameter) {
  if (parameter.scalar_type() != at::kFloat || !parameter.device().is_cpu() ||
      parameter.layout() != at::kStrided || !parameter.is_contiguous()) {
    std::ostringstream got;
    got << parameter.dtype() << " on " << parameter.device() << ", "
        << (parameter.layout() == at::kStrided && parameter.is_contiguous() ? "" : "not ")
        << "contiguous";
    return fail(Code::kInvalidArgument, "ddp: parameter ", name,
                ": wanted float32 on the CPU, contiguous, got ", got.str());
  }
  const std::vector<std::uint64_t> dims(parameter.sizes().begin(), parameter.sizes().end());
  auto shape = Shape::from(dims);
  if (!shape) {
    return fail(Code::kInvalidArgument, "ddp: parameter ", name, ": ", shape.error().message());
  }
  return shape;
}

}  // namespace

Result<ModuleLayout> read_module(const torch::nn::Module* module) {
  if (module == nullptr) return fail(Code::kInvalidArgument, "ddp: wanted a module, got none");
  ModuleLayout layout;
  std::set<const at::TensorImpl*> met;
  for (const auto& item : module->named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.defined() || !met.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (!parameter.requires_grad()) {
      layout.description += described("frozen", item.key(), parameter);
      layout.frozen.push_back(parameter);
      continue;
    }
    const auto shape = shape_of(item.key(), parameter);
    if (!shape) return tl::unexpected(shape.error());
    layout.description += described("parameter", item.key(), parameter);
    // Nothing to synchronise, and no codec has a payload for it.
    if (parameter.numel() == 0) continue;
    layout.tensors.push_back({.name = item.key(), .shape = *shape});
    layout.parameters.push_back(parameter);
  }
  if (layout.parameters.empty()) {
    return fail(Code::kInvalidArgument, "ddp: module ", module->name(),
                ": wanted parameters that need a gradient, got none");
  }
  for (const auto& item : module->named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined() || !met.insert(buffer.unsafeGetTensorImpl()).second) continue;
    layout.description += described("buffer", item.key(), buffer);
    layout.buffers.push_back(buffer);
  }
  std::ranges::reverse(layout.tensors);
  std::ranges::reverse(layout.parameters);
  return layout;
}

}  // namespace gradpress::ddp
