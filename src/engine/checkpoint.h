// An engine's checkpoint: what one rank's next step needs, as bytes.
#pragma once

#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime.h"
#include "engine/velocity.h"

namespace gradpress::engine {

/// Whose checkpoint it is, and where it stands.
struct CheckpointHead {
  std::string description = {};  ///< tensors, codecs, options, world: must be the same again
  std::string plan = {};         ///< what ran, as gradpress-plan-1
  std::uint32_t rank = 0;
  std::uint64_t step = 0;
  std::uint32_t turn = 0;  ///< which of two programs is next
};

/// `velocity` is null without momentum. Between steps.
std::vector<std::byte> save_checkpoint(const CheckpointHead& head, Runtime& runtime,
                                       const Velocity* velocity);

/// A checkpoint whose checksum is right, opened.
class Checkpoint {
 public:
  /// Errors: kCorruptPayload.
  static Result<Checkpoint> open(std::span<const std::byte> bytes);

  const CheckpointHead& head() const { return head_; }
  /// Requires: a runtime of head().description.
  /// Errors: kCorruptPayload; the runtime's residuals are then unspecified.
  Status load(Runtime& runtime, Velocity* velocity);
  /// What the rank's error feedback had kept of every tensor. Instead of load(), once.
  /// Errors: kCorruptPayload.
  Result<std::vector<std::vector<float>>> residuals();

 private:
  explicit Checkpoint(std::span<const std::byte> bytes) : rest_(bytes) {}
  CheckpointHead head_;
  bool has_momentum_ = false;
  std::uint32_t tensors_ = 0;
  sync::ByteReader rest_;
};

/// Where two descriptions first differ, as one sentence; empty: nowhere.
std::string first_difference(const std::string& saved, const std::string& here);

}  // namespace gradpress::engine
