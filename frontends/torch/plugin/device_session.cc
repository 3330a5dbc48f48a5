#include "device_session.h"

#include <ATen/ATen.h>
#include <gradpress/codec.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

#include "codec/sparse.h"
#include "kernels/sparse.h"
#include "plan/policy.h"

namespace gradpress::plugin {

namespace {

using codec::Kind;
using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

/// Payload bytes of gathered codecs begin at multiples of this, so that they can be read as floats.
constexpr std::int64_t kAlign = 4;

bool has_path(Kind kind) {
  constexpr std::array kKinds{Kind::kNone,    Kind::kFp16,   Kind::kBf16,     Kind::kTopK,
                              Kind::kRandomK, Kind::kEfSign, Kind::kPowerSgd, Kind::kAcpSgd};
  return std::ranges::find(kKinds, kind) != kKinds.end();
}

/// bf16 too: Gloo cannot add it, and float32 adds it better.
bool is_gathered(Kind kind) {
  return kind == Kind::kTopK || kind == Kind::kEfSign || kind == Kind::kBf16;
}

bool is_cast(Kind kind) { return kind == Kind::kFp16 || kind == Kind::kBf16; }

at::TensorOptions floats_on(const at::Device& device) {
  return at::TensorOptions(at::kFloat).device(device);
}

/// An orthonormal basis of the columns' span; finite whatever comes in.
at::Tensor orthonormal(const at::Tensor& factor) {
  return std::get<0>(at::linalg_qr(at::nan_to_num(factor, 0.0, 0.0, 0.0), "reduced"));
}

/// Where the flag, a tensor of one element, says so.
at::Tensor chosen(const at::Tensor& ok, const at::Tensor& yes, const at::Tensor& no) {
  return at::where(ok, yes, no);
}

at::Tensor bit_weights(const at::Device& device) {
  return at::pow(2, at::arange(8, at::TensorOptions(at::kByte).device(device))).to(at::kByte);
}

/// f32 mean magnitude, then a bit per element, 1 = negative.
at::Tensor sign_payload(const at::Tensor& x) {
  const at::Tensor flat = x.flatten();
  const std::int64_t bytes = (flat.numel() + 7) / 8;
  at::Tensor negative = at::zeros({8 * bytes}, flat.options().dtype(at::kByte));
  negative.narrow(0, 0, flat.numel()).copy_(flat.lt(0));
  const at::Tensor packed = negative.view({bytes, 8})
                                .mul(bit_weights(x.device()))
                                .sum(at::IntArrayRef{1}, false, at::kByte);
  return at::cat({flat.abs().mean().view({1}).view(at::kByte), packed});
}

at::Tensor signs_of(const at::Tensor& payload, std::int64_t elements) {
  const at::Tensor bits = payload.narrow(0, kAlign, (elements + 7) / 8);
  const at::Tensor negative =
      bits.unsqueeze(1).bitwise_and(bit_weights(payload.device())).ne(0).flatten();
  const at::Tensor sign = negative.narrow(0, 0, elements).to(at::kFloat).mul_(-2.0).add_(1.0);
  return sign.mul_(payload.narrow(0, 0, kAlign).view(at::kFloat));
}

std::int64_t kept_elements(const codec::Spec& spec, std::int64_t elements) {
  return static_cast<std::int64_t>(
      codec::kept_elements(spec, static_cast<std::uint64_t>(elements)));
}

/// What the host codec draws, on every rank the same.
at::Tensor drawn_elements(const codec::Spec& spec, const StateOptions& options,
                          std::uint64_t step) {
  const std::uint64_t elements = options.shape.elements();
  const std::uint64_t kept = codec::kept_elements(spec, elements);
  kernels::Strata strata(elements, kept, codec::shard_key(options, step, 0));
  at::Tensor drawn = at::empty({static_cast<std::int64_t>(kept)}, at::TensorOptions(at::kLong));
  for (std::int64_t& index : std::span(drawn.data_ptr<std::int64_t>(), kept)) {
    index = strata.next();
  }
  return drawn;
}

/// As the payload of a gathered codec, which ends at a multiple of kAlign.
at::Tensor padded(const at::Tensor& bytes, std::int64_t length) {
  return at::constant_pad_nd(bytes, {0, length - bytes.numel()});
}

std::int64_t gathered_bytes(const codec::Spec& spec, std::int64_t elements) {
  std::int64_t bytes = kAlign + (elements + 7) / 8;
  if (spec.kind == Kind::kTopK) bytes = 8 * kept_elements(spec, elements);
  if (spec.kind == Kind::kBf16) bytes = 2 * elements;
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

/// A bucket on its way.
struct DeviceSession::Step {
  int workers = 1;
  std::vector<Part> parts;
  at::Tensor summed;                 ///< float32: factors, and what travels raw
  at::Tensor halves;                 ///< float16, already divided
  at::Tensor bytes;                  ///< payloads that are gathered
  std::vector<at::Tensor> received;  ///< by rank
};

bool DeviceSession::can(std::string_view codec) {
  const auto spec = codec::parse_spec(codec);
  return spec && has_path(spec->kind);
}

Result<std::unique_ptr<DeviceSession>> DeviceSession::make(
    c10::intrusive_ptr<c10d::ProcessGroup> process_group, const std::vector<Parameter>& parameters,
    const EngineOptions& options) {
  std::unique_ptr<DeviceSession> session(new DeviceSession());
  session->process_group_ = std::move(process_group);
  session->options_ = options;
  for (const Parameter& parameter : parameters) {
    session->tensor_of_[parameter.tensor.unsafeGetTensorImpl()] = session->kept_.size();
    session->kept_.push_back({.name = parameter.name,
                              .shape = shape_of(parameter.tensor),
                              .device = parameter.tensor.device()});
  }
  if (Status status = session->use(options.codec); !status) return tl::unexpected(status);
  return session;
}

Status DeviceSession::use(std::string_view codec) {
  std::vector<codec::Spec> specs;
  for (const Kept& kept : kept_) {
    const auto rule = std::ranges::find_if(options_.rules, [&](const CodecRule& candidate) {
      return plan::matches(candidate.pattern, kept.name);
    });
    const std::string_view text = rule == options_.rules.end() ? codec : rule->codec;
    const auto spec = codec::parse_spec(text);
    if (!spec) return spec.error();
    if (!has_path(spec->kind)) {
      return Status::error(Code::kInvalidArgument, "gradpress: parameter ", kept.name,
                           " is to be compressed on its device, where there are none, fp16, bf16, "
                           "topk, randomk, efsign, powersgd and acpsgd; got ",
                           text);
    }
    // As where the engine decides: what is too small to gain travels raw.
    const std::uint64_t raw_bytes = sizeof(float) * kept.shape.elements();
    const bool low_rank = spec->kind == Kind::kPowerSgd || spec->kind == Kind::kAcpSgd;
    const bool gains = kept.shape.elements() >= options_.least_elements &&
                       codec::payload_bytes(*spec, kept.shape) < raw_bytes &&
                       (!low_rank || codec::effective_rank(*spec, kept.shape) > 0);
    specs.push_back(gains || is_cast(spec->kind) ? *spec : codec::Spec{});
  }
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    Kept& kept = kept_[i];
    kept.spec = specs[i];
    const bool needs = kept.spec.kind != Kind::kNone && !is_cast(kept.spec.kind);
    kept.feedback = kept.spec.kind != Kind::kNone && options_.feedback.value_or(needs);
    if (Status status = begin_factors(kept); !status) return status;
  }
  running_ = codec;
  return {};
}

StateOptions DeviceSession::state_options(const Kept& kept) const {
  return {.shape = kept.shape,
          .seed = options_.seed,
          .tensor = static_cast<std::uint64_t>(&kept - kept_.data())};
}

Status DeviceSession::begin_factors(Kept& kept) const {
  kept.left = kept.right = at::Tensor();
  kept.right_step = false;
  if (kept.spec.kind != Kind::kAcpSgd && kept.spec.kind != Kind::kPowerSgd) return {};
  // The first factor is the host codec's own: its extras end with it, column after column.
  const auto codec = make_codec(codec::to_text(kept.spec));
  if (!codec) return codec.error();
  const auto state = (*codec)->make_state(state_options(kept));
  if (!state) return state.error();
  const std::vector<std::byte> extras = (*state)->save_extras();
  const auto rank = static_cast<std::int64_t>(codec::effective_rank(kept.spec, kept.shape));
  const auto rows = static_cast<std::int64_t>(kept.shape.rows());
  const auto cols = static_cast<std::int64_t>(kept.shape.cols());
  at::Tensor first = at::empty({rank, cols}, floats_on(at::kCPU));
  std::memcpy(first.data_ptr(), extras.data() + (extras.size() - first.nbytes()), first.nbytes());
  kept.right = first.t().contiguous().to(kept.device);
  // acpsgd stands on it where the very first step met NaN.
  kept.left = at::eye(rows, rank, floats_on(kept.device));
  return {};
}

Status DeviceSession::find_parts(const c10d::GradBucket& bucket, Step& step) {
  const auto parameters = bucket.getParameters();
  const auto gradients = bucket.getGradients();
  step.parts.reserve(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = tensor_of_.find(parameters[i].unsafeGetTensorImpl());
    if (found == tensor_of_.end()) return unknown_parameter(i, bucket.getIndex());
    step.parts.push_back({.kept = &kept_[found->second], .gradient = gradients[i]});
  }
  return {};
}

Result<c10::intrusive_ptr<c10::ivalue::Future>> DeviceSession::push(c10d::GradBucket& bucket,
                                                                    const c10::IValue& value) {
  const at::NoGradGuard no_grad;
  auto step = std::make_shared<Step>();
  step->workers = process_group_->getSize();
  if (Status status = find_parts(bucket, *step); !status) return tl::unexpected(status);
  encode(*step);
  Works works;
  const auto add = [&](c10::intrusive_ptr<c10d::Work> work) { works.push_back(std::move(work)); };
  for (at::Tensor* tensor : {&step->summed, &step->halves}) {
    if (!tensor->defined()) continue;
    std::vector<at::Tensor> tensors{*tensor};
    add(process_group_->allreduce(tensors));
  }
  if (step->bytes.defined()) {
    for (int rank = 0; rank < step->workers; ++rank) {
      step->received.push_back(at::empty_like(step->bytes));
    }
    std::vector<std::vector<at::Tensor>> outputs{step->received};
    std::vector<at::Tensor> inputs{step->bytes};
    add(process_group_->allgather(outputs, inputs));
  }
  for (const at::Tensor& tensor : {step->summed, step->halves, step->bytes}) {
    if (tensor.defined()) payload_bytes_ += tensor.nbytes();
  }
  if (bucket.isLast()) {
    last_payload_bytes_ = std::exchange(payload_bytes_, 0);
    ++step_;
  }
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works) futures.push_back(work->getFuture());
  return c10::collectAll(futures)->then(
      [step, value](c10::ivalue::Future& done) {
        // Asking for the values throws what went wrong.
        const c10::IValue all = done.value();
        for (const c10::IValue& one : all.toListRef()) (void)one.toFuture()->value();
        const at::NoGradGuard decoding;
        decode(*step);
        return value;
      },
      c10::PyObjectType::get());
}

void DeviceSession::encode(Step& step) {
  std::vector<at::Tensor> summed;
  std::vector<at::Tensor> halves;
  std::vector<at::Tensor> bytes;
  std::vector<at::Tensor> first_round;
  std::array<std::int64_t, 3> ends{};
  const auto place = [&](Part& part, std::size_t vector, std::int64_t length) {
    part.begin = ends[vector];
    part.length = length;
    ends[vector] += length;
  };
  for (Part& part : step.parts) {
    Kept& kept = *part.kept;
    const auto rows = static_cast<std::int64_t>(kept.shape.rows());
    const at::Tensor matrix = part.gradient.reshape({rows, rows == 0 ? 0 : -1}).to(at::kFloat);
    // What another codec left behind goes out with the first step, whatever runs now.
    part.x = kept.residual.defined() ? matrix + kept.residual : matrix;
    switch (kept.spec.kind) {
      case Kind::kFp16:
        halves.push_back(part.x.flatten().to(at::kHalf).div_(step.workers));
        place(part, 1, part.x.numel());
        break;
      case Kind::kBf16:
        place(part, 2, gathered_bytes(kept.spec, part.x.numel()));
        bytes.push_back(padded(part.x.flatten().to(at::kBFloat16).view(at::kByte), part.length));
        break;
      case Kind::kRandomK:
        part.own = drawn_elements(kept.spec, state_options(kept), step_).to(kept.device);
        summed.push_back(part.x.flatten().index_select(0, part.own));
        place(part, 0, part.own.numel());
        break;
      case Kind::kTopK: {
        const at::Tensor flat = part.x.flatten();
        part.own = std::get<1>(
            at::topk(flat.abs(), kept_elements(kept.spec, flat.numel()), 0, true, false));
        bytes.push_back(flat.index_select(0, part.own).view(at::kByte));
        bytes.push_back(part.own.to(at::kInt).view(at::kByte));
        place(part, 2, gathered_bytes(kept.spec, part.x.numel()));
        break;
      }
      case Kind::kEfSign: {
        part.own = sign_payload(part.x);
        place(part, 2, gathered_bytes(kept.spec, part.x.numel()));
        bytes.push_back(padded(part.own, part.length));
        break;
      }
      case Kind::kAcpSgd:
        part.own = kept.right_step ? part.x.t().matmul(kept.left) : part.x.matmul(kept.right);
        summed.push_back(part.own.flatten());
        place(part, 0, part.own.numel());
        break;
      case Kind::kPowerSgd:
        first_round.push_back(part.x.matmul(kept.right).flatten());
        break;
      default:
        summed.push_back(part.x.flatten());
        place(part, 0, part.x.numel());
    }
  }
  if (!first_round.empty()) {
    std::vector<at::Tensor> sum{at::cat(first_round)};
    payload_bytes_ += sum.front().nbytes();
    process_group_->allreduce(sum)->wait();
    std::int64_t begin = 0;
    for (Part& part : step.parts) {
      if (part.kept->spec.kind != Kind::kPowerSgd) continue;
      const std::int64_t rank = part.kept->right.size(1);
      const std::int64_t length = part.x.size(0) * rank;
      part.own = orthonormal(sum.front().narrow(0, begin, length).view({-1, rank}));
      begin += length;
      summed.push_back(part.x.t().matmul(part.own).flatten());
      place(part, 0, part.x.size(1) * rank);
    }
  }
  if (!summed.empty()) step.summed = at::cat(summed);
  if (!halves.empty()) step.halves = at::cat(halves);
  if (!bytes.empty()) step.bytes = at::cat(bytes);
}

namespace {

/// One parameter's result, and what it leaves behind.
struct Decoded {
  at::Tensor mean;
  at::Tensor left_over;  ///< of x
};

}  // namespace

void DeviceSession::decode(Step& step) {
  const float share = 1.0F / static_cast<float>(step.workers);
  // One flag for all of the bucket but its casts, on the device.
  at::Tensor ok;
  const auto check = [&](const at::Tensor& values) {
    const at::Tensor finite = at::isfinite(values).all();
    ok = ok.defined() ? at::logical_and(ok, finite) : finite;
  };
  if (step.summed.defined()) check(step.summed);
  for (const Part& part : step.parts) {
    if (!is_gathered(part.kept->spec.kind) || is_cast(part.kept->spec.kind)) continue;
    const std::int64_t floats =
        part.kept->spec.kind == Kind::kTopK ? part.length / 2 : kAlign;  // in bytes
    for (const at::Tensor& from : step.received) {
      check(from.narrow(0, part.begin, floats).view(at::kFloat));
    }
  }
  for (Part& part : step.parts) {
    Kept& kept = *part.kept;
    Decoded out;
    switch (kept.spec.kind) {
      case Kind::kFp16:
        out.mean = step.halves.narrow(0, part.begin, part.length).to(at::kFloat);
        out.left_over = part.x - part.x.to(at::kHalf).to(at::kFloat);
        break;
      case Kind::kBf16:
        out.mean = at::zeros({part.x.numel()}, part.x.options());
        for (const at::Tensor& from : step.received) {
          const at::Tensor values = from.narrow(0, part.begin, 2 * part.x.numel());
          out.mean.add_(values.view(at::kBFloat16).to(at::kFloat), share);
        }
        out.left_over = part.x - part.x.to(at::kBFloat16).to(at::kFloat);
        break;
      case Kind::kRandomK:
        out.mean = at::zeros({part.x.numel()}, part.x.options());
        out.mean.index_copy_(0, part.own,
                             step.summed.narrow(0, part.begin, part.length).mul(share));
        out.left_over = part.x.flatten().index_fill(0, part.own, 0.0).view_as(part.x);
        break;
      case Kind::kTopK:
      case Kind::kEfSign: {
        out.mean = at::zeros({part.x.numel()}, part.x.options());
        for (const at::Tensor& from : step.received) {
          const at::Tensor payload = from.narrow(0, part.begin, part.length);
          if (kept.spec.kind == Kind::kEfSign) {
            out.mean.add_(signs_of(payload, part.x.numel()), share);
            continue;
          }
          const at::Tensor values = payload.narrow(0, 0, part.length / 2).view(at::kFloat);
          const at::Tensor indices =
              payload.narrow(0, part.length / 2, part.length / 2).view(at::kInt).to(at::kLong);
          out.mean.index_add_(0, indices, values, share);
        }
        out.left_over = kept.spec.kind == Kind::kEfSign
                            ? part.x - signs_of(part.own, part.x.numel()).view_as(part.x)
                            : part.x.flatten().index_fill(0, part.own, 0.0).view_as(part.x);
        break;
      }
      case Kind::kAcpSgd: {
        const at::Tensor sum = step.summed.narrow(0, part.begin, part.length).view_as(part.own);
        const auto product = [&](const at::Tensor& factor) {
          return kept.right_step ? kept.left.matmul(factor.t()) : factor.matmul(kept.right.t());
        };
        out.mean = product(sum).mul_(share);
        out.left_over = part.x - product(part.own);
        at::Tensor& next = kept.right_step ? kept.right : kept.left;
        next = chosen(ok, orthonormal(sum), next);
        kept.right_step = !kept.right_step;
        break;
      }
      case Kind::kPowerSgd: {
        const at::Tensor mean =
            step.summed.narrow(0, part.begin, part.length).view_as(kept.right).mul(share);
        out.mean = part.own.matmul(mean.t());
        out.left_over = part.x - out.mean;
        kept.right = chosen(ok, mean, kept.right);
        break;
      }
      default:
        out.mean = step.summed.narrow(0, part.begin, part.length).mul(share);
    }
    // Casts overflow element by element, as torch's hook does, and every rank sees the same.
    const bool cast = is_cast(kept.spec.kind);
    const at::Tensor fine = cast ? at::isfinite(out.mean).all() : ok;
    if (!cast) {
      const at::Tensor nan =
          at::full({}, std::numeric_limits<float>::quiet_NaN(), out.mean.options());
      out.mean = chosen(fine, out.mean, nan);
    }
    part.gradient.copy_(out.mean.view_as(part.gradient));
    if (kept.feedback) {
      const at::Tensor before = kept.residual.defined() ? kept.residual : at::zeros_like(part.x);
      kept.residual = chosen(fine, out.left_over, before);
    } else if (kept.residual.defined()) {
      kept.residual = chosen(fine, at::zeros_like(kept.residual), kept.residual);
    }
  }
}

Status DeviceSession::set_codec(std::string_view codec) { return use(codec); }

void DeviceSession::scale_residuals(float factor) {
  for (Kept& kept : kept_) {
    if (kept.residual.defined()) kept.residual.mul_(factor);
  }
}

Result<at::Tensor> DeviceSession::residual(std::size_t tensor) const {
  if (tensor >= kept_.size()) {
    return fail(Code::kInvalidArgument, "gradpress: wanted a parameter below ", kept_.size(),
                ", got ", tensor);
  }
  const Kept& kept = kept_[tensor];
  if (kept.residual.defined()) return kept.residual.to(at::kCPU).flatten();
  return at::zeros({static_cast<std::int64_t>(kept.shape.elements())}, floats_on(at::kCPU));
}

Status DeviceSession::add_residual(std::size_t tensor, const at::Tensor& residual) {
  const auto before = this->residual(tensor);
  if (!before) return before.error();
  if (residual.numel() != before->numel()) {
    return Status::error(Code::kInvalidArgument, "gradpress: residual of parameter ", tensor,
                         ": wanted ", before->numel(), " elements, got ", residual.numel());
  }
  Kept& kept = kept_[tensor];
  const auto rows = static_cast<std::int64_t>(kept.shape.rows());
  kept.residual = before->add(residual.to(at::kCPU, at::kFloat).flatten())
                      .view({rows, rows == 0 ? 0 : -1})
                      .to(kept.device);
  return {};
}

std::string DeviceSession::summary() const {
  std::size_t compressed = 0;
  for (const Kept& kept : kept_) compressed += kept.spec.kind != Kind::kNone ? 1 : 0;
  return std::to_string(compressed) + " of " + std::to_string(kept_.size()) +
         " tensors compressed on their device by ATen's operators, a message per bucket; " +
         std::to_string(last_payload_bytes_) + " B of payloads in the last step";
}

std::vector<std::byte> DeviceSession::checkpoint() const {
  c10::Dict<std::string, at::Tensor> all;
  for (const Kept& kept : kept_) {
    const auto keep = [&](const char* what, const at::Tensor& tensor) {
      if (tensor.defined()) all.insert(kept.name + "/" + what, tensor.to(at::kCPU));
    };
    keep("residual", kept.residual);
    keep("left", kept.left);
    keep("right", kept.right);
    if (kept.right_step) keep("right_step", at::ones({1}));
  }
  all.insert("codec/" + running_,
             at::full({1}, static_cast<std::int64_t>(step_), at::TensorOptions(at::kLong)));
  const std::vector<char> pickled = torch::jit::pickle_save(all);
  const auto bytes = std::as_bytes(std::span(pickled));
  return {bytes.begin(), bytes.end()};
}

Status DeviceSession::restore(std::span<const std::byte> checkpoint) {
  c10::Dict<std::string, at::Tensor> all;
  try {
    const std::vector<char> pickled(
        reinterpret_cast<const char*>(checkpoint.data()),
        reinterpret_cast<const char*>(checkpoint.data() + checkpoint.size()));
    for (const auto& entry : torch::jit::pickle_load(pickled).toGenericDict()) {
      all.insert(entry.key().toStringRef(), entry.value().toTensor());
    }
  } catch (const std::exception& error) {
    return Status::error(Code::kInvalidArgument,
                         "gradpress: not a checkpoint of the device path: ", error.what());
  }
  if (!all.contains("codec/" + running_)) {
    return Status::error(Code::kInvalidArgument, "gradpress: the checkpoint is not of codec ",
                         running_);
  }
  const auto saved = [&](const Kept& kept, const char* what) {
    const auto found = all.find(kept.name + "/" + what);
    return found == all.end() ? at::Tensor() : found->value().to(kept.device);
  };
  for (const Kept& kept : kept_) {
    const std::array<std::pair<const char*, at::Tensor>, 2> own_factors{
        {{"left", kept.left}, {"right", kept.right}}};
    for (const auto& [what, own] : own_factors) {
      const at::Tensor other = saved(kept, what);
      if (own.defined() != other.defined() || (own.defined() && own.sizes() != other.sizes())) {
        return Status::error(Code::kInvalidArgument, "gradpress: the checkpoint's ", what,
                             " factor of ", kept.name, " is of another shape");
      }
    }
  }
  step_ = static_cast<std::uint64_t>(all.at("codec/" + running_).item<std::int64_t>());
  for (Kept& kept : kept_) {
    kept.residual = saved(kept, "residual");
    kept.left = saved(kept, "left");
    kept.right = saved(kept, "right");
    kept.right_step = saved(kept, "right_step").defined();
  }
  return {};
}

}  // namespace gradpress::plugin
