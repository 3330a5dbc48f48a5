// Compression where the gradients are: on whatever device, by ATen's operators alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <gradpress/engine.h>
#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <unordered_map>
#include <vector>

#include "codec/spec.h"
#include "session.h"

namespace gradpress::plugin {

/// A Session for tensors that must not leave their device: none, fp16, bf16, topk, randomk, efsign,
/// powersgd and acpsgd, bucket by bucket as DDP hands them over, with error feedback in device
/// memory. Payloads are ordinary tensors on DDP's own process group. There is no plan and no
/// "auto": a bucket is a message.
///
/// Collectives are issued by the caller of push() alone, in the order of buckets; what follows them
/// runs where the process group completes its work. powersgd waits for its first sum in between.
///
/// No poison: when the sum of a message is not finite, its gradients become NaN on every rank, and
/// residuals and factors stay; that is decided on the device, without a look from the host.
///
/// Threads: one pushes. All else between steps.
class DeviceSession {
 public:
  /// Of the options codec, rules, least_elements, feedback and seed count.
  /// Errors: kInvalidArgument on a codec that has no such path.
  static Result<std::unique_ptr<DeviceSession>> make(
      c10::intrusive_ptr<c10d::ProcessGroup> process_group,
      const std::vector<Parameter>& parameters, const EngineOptions& options);
  /// Whether a codec's text has such a path.
  static bool can(std::string_view codec);

  /// Encodes the bucket and starts its collectives. The future completes with `value` when the
  /// bucket holds the mean.
  /// Errors: kInvalidArgument on a parameter that is not the session's.
  Result<c10::intrusive_ptr<c10::ivalue::Future>> push(c10d::GradBucket& bucket,
                                                       const c10::IValue& value);

  /// Residuals carry over; factors begin anew.
  Status set_codec(std::string_view codec);
  void scale_residuals(float factor);
  /// Float32 in host memory; zeros where none is kept.
  Result<at::Tensor> residual(std::size_t tensor) const;
  Status add_residual(std::size_t tensor, const at::Tensor& residual);
  std::string summary() const;
  const std::string& running() const { return running_; }
  std::vector<std::byte> checkpoint() const;
  /// Errors: kInvalidArgument when it is of other parameters or codecs.
  Status restore(std::span<const std::byte> checkpoint);
  /// What the last step's payloads of this rank were, before the process group sends them its way.
  std::uint64_t payload_bytes() const { return last_payload_bytes_; }
  std::size_t tensors() const { return kept_.size(); }

 private:
  /// What lasts of a parameter from step to step.
  struct Kept {
    std::string name = {};
    Shape shape = {};
    at::Device device = at::kCPU;
    codec::Spec spec = {};
    bool feedback = false;
    at::Tensor residual = {};  ///< rows × cols; undefined: zero
    at::Tensor left = {};      ///< rows × rank; acpsgd
    at::Tensor right = {};     ///< cols × rank; acpsgd and powersgd
    bool right_step = false;   ///< acpsgd: whether Q is computed next
  };
  /// One parameter's part of a bucket under way.
  struct Part {
    Kept* kept = nullptr;
    at::Tensor gradient = {};
    at::Tensor x = {};    ///< gradient + residual, float32, rows × cols
    at::Tensor own = {};  ///< acpsgd: this rank's factor; powersgd: the basis; else: the indices
    std::int64_t begin = 0;
    std::int64_t length = 0;  ///< of its payload, in its vector
  };
  struct Step;

  DeviceSession() = default;
  Status use(std::string_view codec);
  /// As the engine's, so that both draw the same. Requires: one of kept_.
  StateOptions state_options(const Kept& kept) const;
  Status begin_factors(Kept& kept) const;
  Status find_parts(const c10d::GradBucket& bucket, Step& step);
  void encode(Step& step);
  static void decode(Step& step);

  c10::intrusive_ptr<c10d::ProcessGroup> process_group_;
  EngineOptions options_;
  std::string running_;
  std::vector<Kept> kept_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> tensor_of_;
  std::uint64_t step_ = 0;
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t last_payload_bytes_ = 0;
};

}  // namespace gradpress::plugin
