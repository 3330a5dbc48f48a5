#include "raw_all_reduce.h"

#include <ATen/ATen.h>

#include <vector>

namespace gradpress::plugin {

c10::intrusive_ptr<c10::ivalue::Future> raw_all_reduce(c10d::ProcessGroup& process_group,
                                                       c10d::GradBucket& bucket, Scaling scaling,
                                                       const c10::IValue& value) {
  const at::Tensor& buffer = bucket.getBuffer();
  const auto type = buffer.scalar_type();
  const bool wide = type == at::kFloat || type == at::kDouble;
  at::Tensor sum = wide ? buffer : buffer.to(at::kFloat);
  const int workers = process_group.getSize();
  if (scaling == Scaling::kDivide) {
    sum.div_(workers);
  } else {
    sum.mul_(1.0 / workers);
  }
  std::vector<at::Tensor> tensors{sum};
  const auto work = process_group.allreduce(tensors);
  return work->getFuture()->then(
      [value, buffer, sum, wide](c10::ivalue::Future& done) {
        // The value is known before; asking for it throws what went wrong.
        (void)done.value();
        if (!wide) buffer.copy_(sum);
        return value;
      },
      c10::PyObjectType::get());
}

}  // namespace gradpress::plugin
