// What DDP does without a hook, as a hook: bit for bit the same.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace gradpress::plugin {

/// How DDP forms the mean before it sums: it multiplies by 1/W while it copies a gradient into its
/// bucket, and divides by W where the gradient already lies there. The two differ in the last bit
/// unless W is a power of two.
enum class Scaling : std::uint8_t { kMultiply, kDivide };

/// Scales the bucket and starts the process group's own all-reduce. The future completes with
/// `value`. Gradients of two-byte types are summed in float32, which every backend can.
/// Cost: one pass over the bucket.
c10::intrusive_ptr<c10::ivalue::Future> raw_all_reduce(c10d::ProcessGroup& process_group,
                                                       c10d::GradBucket& bucket, Scaling scaling,
                                                       const c10::IValue& value);

}  // namespace gradpress::plugin
