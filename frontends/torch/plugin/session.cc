#include "session.h"

#include <ATen/ATen.h>

#include <utility>

namespace gradpress::plugin {

Shape shape_of(const at::Tensor& tensor) {
  std::vector<std::uint64_t> extents;
  for (const std::int64_t extent : tensor.sizes()) {
    extents.push_back(static_cast<std::uint64_t>(extent));
  }
  const auto shape = Shape::from(extents);
  return shape ? *shape : Shape::flat(static_cast<std::uint64_t>(tensor.numel()));
}

Status unknown_parameter(std::size_t parameter, std::size_t bucket) {
  return Status::error(Code::kInvalidArgument, "gradpress: parameter ", parameter, " of bucket ",
                       bucket,
                       " is none of the model's that was attached; attach the model again after "
                       "its parameters were replaced");
}

void Session::Log::add(std::string_view line) {
  const MutexLock lock(mutex_);
  lines_.emplace_back(line);
}

std::vector<std::string> Session::Log::take() {
  const MutexLock lock(mutex_);
  return std::exchange(lines_, {});
}

Result<std::unique_ptr<Session>> Session::make(const C10dOptions& group,
                                               const std::vector<Parameter>& parameters,
                                               EngineOptions options) {
  std::unique_ptr<Session> session(new Session());
  std::vector<EngineTensor> tensors;
  for (const Parameter& parameter : parameters) {
    session->tensor_of_[parameter.tensor.unsafeGetTensorImpl()] = tensors.size();
    session->sizes_.push_back(parameter.tensor.numel());
    tensors.push_back({.name = parameter.name, .shape = shape_of(parameter.tensor)});
  }
  auto world = connect_c10d(group);
  if (!world) return tl::unexpected(world.error());
  options.automatic.other_raw_us = [us = session->other_raw_us_] { return us->load(); };
  options.log = [log = session->log_](std::string_view line) { log->add(line); };
  auto thread = GradientThread::make([&](std::function<void()> on_work) {
    options.on_work = std::move(on_work);
    return Engine::make(std::move(*world), tensors, options);
  });
  if (!thread) return tl::unexpected(thread.error());
  session->thread_ = std::move(*thread);
  return session;
}

Status Session::push(const c10d::GradBucket& bucket, GradientThread::Done done) {
  const auto parameters = bucket.getParameters();
  const auto gradients = bucket.getGradients();
  std::vector<Slice> slices;
  slices.reserve(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = tensor_of_.find(parameters[i].unsafeGetTensorImpl());
    if (found == tensor_of_.end()) return unknown_parameter(i, bucket.getIndex());
    slices.push_back({.tensor = found->second, .gradient = gradients[i]});
  }
  thread_->push(std::move(slices), bucket.isLast(), std::move(done));
  return {};
}

Status Session::set_codec(std::string_view codec) {
  return thread_->between_steps([&](Engine& engine) { return engine.set_codec(codec); });
}

Status Session::scale_residuals(float factor) {
  return thread_->between_steps([&](Engine& engine) {
    engine.scale_residuals(factor);
    return Status();
  });
}

Status Session::check_tensor(std::size_t tensor) const {
  if (tensor < sizes_.size()) return {};
  return Status::error(Code::kInvalidArgument, "gradpress: wanted a parameter below ",
                       sizes_.size(), ", got ", tensor);
}

Result<at::Tensor> Session::residual(std::size_t tensor) {
  Status status = check_tensor(tensor);
  if (!status.is_ok()) return tl::unexpected(status);
  at::Tensor out = at::zeros({sizes_[tensor]}, at::TensorOptions(at::kFloat));
  const std::span memory(out.data_ptr<float>(), static_cast<std::size_t>(out.numel()));
  status = thread_->between_steps([&](Engine& engine) {
    engine.copy_residual(tensor, memory);
    return Status();
  });
  if (!status.is_ok()) return tl::unexpected(status);
  return out;
}

Status Session::add_residual(std::size_t tensor, const at::Tensor& residual) {
  const Status status = check_tensor(tensor);
  if (!status.is_ok()) return status;
  if (residual.numel() != sizes_[tensor]) {
    return Status::error(Code::kInvalidArgument, "gradpress: residual of parameter ", tensor,
                         ": wanted ", sizes_[tensor], " elements, got ", residual.numel());
  }
  const at::Tensor plain = residual.to(at::kCPU, at::kFloat).contiguous();
  const std::span memory(plain.data_ptr<float>(), static_cast<std::size_t>(plain.numel()));
  return thread_->between_steps(
      [&](Engine& engine) { return engine.add_residual(tensor, memory); });
}

template <class T, class Ask>
Result<T> Session::ask(const Ask& question) {
  T answer;
  const Status status = thread_->between_steps([&](Engine& engine) {
    answer = question(engine);
    return Status();
  });
  if (!status.is_ok()) return tl::unexpected(status);
  return answer;
}

Result<std::string> Session::summary() {
  return ask<std::string>([](const Engine& engine) { return engine.summary(); });
}

Result<std::string> Session::running() {
  return ask<std::string>([](const Engine& engine) { return engine.running(); });
}

Result<std::vector<std::byte>> Session::checkpoint() {
  return ask<std::vector<std::byte>>([](const Engine& engine) { return engine.checkpoint(); });
}

Status Session::restore(std::span<const std::byte> checkpoint) {
  return thread_->between_steps([&](Engine& engine) { return engine.restore(checkpoint); });
}

}  // namespace gradpress::plugin
