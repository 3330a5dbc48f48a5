#include <gradpress/ddp.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "module_layout.h"
#include "side_channel.h"

namespace gradpress::ddp {

namespace {

/// Names in one error; more are counted.
constexpr std::size_t kNamesShown = 4;

std::span<float> values_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

/// Adds in an order that depends on nothing but the length, so that ranks which hold the same
/// gradients find the same norm. torch's own sum depends on the number of its threads.
double sum_of_squares(std::span<const float> values) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  double sum = 0.0;
  for (; i < values.size(); ++i) sum += static_cast<double>(values[i]) * values[i];
  for (const double part : sums) sum += part;
  return sum;
}

/// Scales all gradients down to `limit` where their norm is over it. What is not finite is left
/// alone: the engine finds it, or has.
void clip(std::span<const at::Tensor> gradients, double limit) {
  double sum = 0.0;
  for (const at::Tensor& gradient : gradients) sum += sum_of_squares(values_of(gradient));
  const double norm = std::sqrt(sum);
  if (!std::isfinite(norm) || norm <= limit) return;
  const auto factor = static_cast<float>(limit / norm);
  for (const at::Tensor& gradient : gradients) {
    for (float& value : values_of(gradient)) value *= factor;
  }
}

/// Owns the autograd node that adds to a parameter's gradient: a shared_ptr up to torch 2.12, an
/// intrusive_ptr after it.
using Accumulator =
    decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

Status caught(const std::exception& error) {
  return Status::error(Code::kInternal, "ddp: torch says: ", error.what());
}

std::string describe(const Options& options) {
  std::ostringstream text;
  text << "option broadcast_buffers: " << options.broadcast_buffers
       << "\noption clip_before: " << options.clip_before
       << "\noption clip_after: " << options.clip_after << '\n';
  return text.str();
}

Status check_options(const Options& options) {
  for (const double norm : {options.clip_before, options.clip_after}) {
    if (!std::isfinite(norm) || norm < 0.0) {
      return Status::error(Code::kInvalidArgument,
                           "ddp: clip_before and clip_after: wanted a norm, or 0 for no clipping, "
                           "got ",
                           norm);
    }
  }
  return {};
}

class Replica final : public DataParallel {
 public:
  Replica(std::shared_ptr<torch::nn::Module> module, ModuleLayout layout, SideChannel side,
          Options options);
  ~Replica() override;

  Status start(World world);

  Result<EngineStep> synchronise() override;
  Status mean(std::span<double> values) override;
  Engine& engine() override { return *engine_; }
  unsigned rank() const override { return side_.rank(); }
  unsigned workers() const override { return side_.workers(); }
  SentBytes sent_besides() const override { return side_.sent_bytes(); }

 private:
  /// One parameter's way through a step.
  struct Slot {
    Accumulator accumulator;  ///< the parameter keeps it weakly
    std::uintptr_t hook = 0;
    bool seen = false;    ///< a gradient has come since the last step
    bool handed = false;  ///< the engine has it
  };

  class Hook final : public torch::autograd::FunctionPostHook {
   public:
    Hook(Replica& owner, std::size_t tensor) : owner_(owner), tensor_(tensor) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& outputs,
        const torch::autograd::variable_list& /*inputs*/) override {
      owner_.on_gradient(tensor_);
      return outputs;
    }

   private:
    Replica& owner_;
    const std::size_t tensor_;
  };

  void hold(bool on) override { holds_ += on ? 1 : -1; }
  void on_gradient(std::size_t tensor) noexcept;
  Status take(std::size_t tensor);
  Status hand_over(std::size_t tensor);
  Result<unsigned> settle();
  Status missing_gradients() const;
  Result<EngineStep> run_step();

  const std::shared_ptr<torch::nn::Module> module_;
  const ModuleLayout layout_;
  const Options options_;
  std::vector<Slot> slots_;
  int holds_ = 0;
  Status failure_;

  // After a failure the groups may still write to gradients: engine_ is destroyed before them.
  std::vector<at::Tensor> gradients_;
  SideChannel side_;
  std::unique_ptr<Engine> engine_;
};

Replica::Replica(std::shared_ptr<torch::nn::Module> module, ModuleLayout layout, SideChannel side,
                 Options options)
    : module_(std::move(module)),
      layout_(std::move(layout)),
      options_(std::move(options)),
      slots_(layout_.parameters.size()),
      gradients_(layout_.parameters.size()),
      side_(std::move(side)) {}

Replica::~Replica() {
  for (const Slot& slot : slots_) {
    if (slot.accumulator) slot.accumulator->del_post_hook(slot.hook);
  }
}

Status Replica::start(World world) {
  auto engine = Engine::make(std::move(world), layout_.tensors, options_.engine);
  if (!engine) return engine.error();
  engine_ = std::move(*engine);
  for (const auto& tensors : {layout_.parameters, layout_.frozen, layout_.buffers}) {
    if (Status status = side_.broadcast(tensors); !status) return status;
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].accumulator = torch::autograd::impl::grad_accumulator(layout_.parameters[i]);
    slots_[i].hook = slots_[i].accumulator->add_post_hook(std::make_unique<Hook>(*this, i));
  }
  return {};
}

void Replica::on_gradient(std::size_t tensor) noexcept {
  slots_[tensor].seen = true;
  if (holds_ > 0 || options_.clip_before > 0.0 || !failure_) return;
  try {
    failure_ = take(tensor);
    if (failure_) failure_ = hand_over(tensor);
  } catch (const std::exception& error) {
    failure_ = caught(error);
  }
}

/// Keeps the tensor's gradient of this step; autograd may put another in its place later.
Status Replica::take(std::size_t tensor) {
  const std::string& name = layout_.tensors[tensor].name;
  if (slots_[tensor].handed) {
    return Status::error(Code::kInvalidArgument, "ddp: parameter ", name,
                         " got a second gradient before synchronise(): call it after every "
                         "backward, or hold a NoSync while gradients accumulate");
  }
  const at::Tensor gradient = layout_.parameters[tensor].grad();
  if (!gradient.defined() || gradient.layout() != at::kStrided || !gradient.is_contiguous() ||
      gradient.scalar_type() != at::kFloat ||
      gradient.numel() != layout_.parameters[tensor].numel()) {
    std::ostringstream got;
    if (gradient.defined()) {
      got << gradient.dtype() << ' ' << gradient.layout() << ' ' << gradient.sizes();
    } else {
      got << "none";
    }
    return Status::error(Code::kInvalidArgument, "ddp: gradient of ", name,
                         ": wanted float32 of the parameter's shape, dense and contiguous, got ",
                         got.str());
  }
  gradients_[tensor] = gradient;
  return {};
}

Status Replica::hand_over(std::size_t tensor) {
  slots_[tensor].handed = true;
  return engine_->ready(tensor, values_of(gradients_[tensor]));
}

Status Replica::missing_gradients() const {
  std::string names;
  std::size_t missing = 0;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].seen || missing++ >= kNamesShown) continue;
    names += (names.empty() ? "" : ", ") + layout_.tensors[i].name;
  }
  if (missing > kNamesShown) names += " and " + std::to_string(missing - kNamesShown) + " more";
  return Status::error(Code::kInvalidArgument, "ddp: no gradient on rank ", rank(), " for ", names,
                       ": wanted one for every parameter; set engine.allow_unused if some have "
                       "none in some steps, or requires_grad to false if they never do");
}

/// Hands over what the hooks did not; returns how many count as zero.
Result<unsigned> Replica::settle() {
  unsigned unused = 0;
  for (const Slot& slot : slots_) unused += slot.seen ? 0 : 1;
  if (unused > 0 && !options_.engine.allow_unused) return tl::unexpected(missing_gradients());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].handed) continue;
    const at::Tensor& parameter = layout_.parameters[i];
    if (!parameter.grad().defined()) parameter.mutable_grad() = torch::zeros_like(parameter);
    if (Status status = take(i); !status) return tl::unexpected(status);
  }
  if (options_.clip_before > 0.0) {
    clip(gradients_, options_.clip_before / std::sqrt(static_cast<double>(workers())));
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].handed) continue;
    if (Status status = hand_over(i); !status) return tl::unexpected(status);
  }
  return unused;
}

Result<EngineStep> Replica::run_step() {
  const std::span<const at::Tensor> buffers =
      options_.broadcast_buffers ? std::span(layout_.buffers) : std::span<const at::Tensor>();
  const auto unused = settle();
  if (!unused) return tl::unexpected(unused.error());
  if (Status status = side_.start_broadcast(buffers); !status) return tl::unexpected(status);
  auto step = engine_->wait();
  if (!step) return step;
  if (Status status = side_.finish_broadcast(buffers); !status) return tl::unexpected(status);
  if (options_.clip_after > 0.0 && step->finite) clip(gradients_, options_.clip_after);
  for (Slot& slot : slots_) slot.seen = slot.handed = false;
  std::ranges::fill(gradients_, at::Tensor());
  step->unused = *unused;
  return step;
}

Result<EngineStep> Replica::synchronise() {
  if (!failure_) return tl::unexpected(failure_);
  if (holds_ > 0) {
    return fail(Code::kInvalidArgument,
                "ddp: synchronise() while a NoSync lives: end it before the last backward");
  }
  try {
    auto step = run_step();
    if (!step) failure_ = step.error();
    return step;
  } catch (const std::exception& error) {
    failure_ = caught(error);
    return tl::unexpected(failure_);
  }
}

Status Replica::mean(std::span<double> values) {
  if (failure_) failure_ = side_.mean(values);
  return failure_;
}

Result<std::unique_ptr<DataParallel>> make_replica(std::shared_ptr<torch::nn::Module> module,
                                                   World world, const Options& options) {
  if (!world.group) return fail(Code::kInvalidArgument, "ddp: wanted a group, got none");
  auto side = SideChannel::make(*world.group);
  if (!side) return tl::unexpected(side.error());
  auto layout = read_module(module.get());
  Status status = layout ? check_options(options) : layout.error();
  status = side->check(status);
  if (status) status = side->check_same(layout->description + describe(options));
  if (!status) return tl::unexpected(status);
  auto made =
      std::make_unique<Replica>(std::move(module), std::move(*layout), std::move(*side), options);
  if (status = made->start(std::move(world)); !status) return tl::unexpected(status);
  return made;
}

}  // namespace

Result<std::unique_ptr<DataParallel>> DataParallel::make(std::shared_ptr<torch::nn::Module> module,
                                                         World world, const Options& options) {
  try {
    return make_replica(std::move(module), std::move(world), options);
  } catch (const std::exception& error) {
    return tl::unexpected(caught(error));
  }
}

}  // namespace gradpress::ddp
