// Times whole steps of a message among the workers of a world: threads of this process, or
// processes.
#pragma once

#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend.h"
#include "codec_timer.h"
#include "sync/fabric.h"
#include "sync/message.h"

namespace gradpress::cli {

struct SyncCost {
  std::size_t bytes = 0;         ///< of one worker's gradients
  Spread us = {};                ///< of the slowest worker, from a barrier on
  std::uint64_t wrong = 0;       ///< workers that hold something else than rank 0
  std::uint64_t wire_bytes = 0;  ///< most that one worker sent in one step
};

class SyncTimer {
 public:
  /// Takes the world's ends. Errors: the world's.
  static Result<SyncTimer> make(BackendWorld& world);

  /// Verifies one step, then times. Gradients differ from worker to worker and not from step to
  /// step. Every process calls it with the same.
  /// Errors: the message's; kInternal when workers hold different results: nothing was timed then.
  Result<SyncCost> cost(const sync::MessageSpec& spec, const Turns& turns);

 private:
  /// Destroyed in this order: groups, then buffers that a backend may still write to after a
  /// failure.
  std::vector<std::unique_ptr<sync::Message>> kept_messages_;
  std::vector<std::vector<float>> kept_gradients_;
  std::vector<std::unique_ptr<sync::Fabric>> fabrics_;
};

}  // namespace gradpress::cli
