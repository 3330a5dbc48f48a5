// What tensors keep between steps: states, and residuals that no state holds.
#pragma once

#include <gradpress/codec.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/buffer.h"

namespace gradpress::sync {

/// One tensor's. Between steps it belongs to whoever asks; in a step to the message that carries
/// the tensor.
struct TensorMemory {
  std::vector<std::shared_ptr<State>> states = {};  ///< by encode site
  Buffer<float> pending = {};  ///< goes with the next step's gradient; empty: nothing
  Buffer<float> spent = {};    ///< what went with the last step's, until the next one begins
  unsigned parity = 0;         ///< steps that ended well, modulo 2: which factor ACP-SGD sends next
};

/// By the tensor's number in the model. Messages made with the same memories take turns: one of
/// them carries the tensor in one step, another in the next (ACP-SGD's P and Q).
using Memories = std::map<std::uint64_t, std::shared_ptr<TensorMemory>>;

}  // namespace gradpress::sync
