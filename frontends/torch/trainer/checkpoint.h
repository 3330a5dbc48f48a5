// A run's state between two steps, one file per rank, so that a run goes on bit for bit.
#pragma once

#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "optimizer.h"
#include "record.h"

namespace gradpress::trainer {

/// All that is not a tensor of the model or the optimizer.
struct Position {
  std::int64_t step = 0;  ///< the next to do
  double seconds = 0.0;
  double wire_bytes = 0.0;
  std::uint64_t skipped_steps = 0;
  std::vector<HistoryPoint> history = {};
  std::vector<std::byte> engine = {};  ///< Engine::checkpoint()
  /// What the run was told, as far as it must be the same when it goes on.
  std::string identity = {};
};

/// The file of a rank in a checkpoint's folder.
std::string checkpoint_file(const std::string& folder, unsigned rank);

/// Writes under another name, `file` + ".part"; finish_checkpoint() gives it its own. Between the
/// two all ranks meet, so that a folder does not hold ranks of different steps.
/// Errors: kInvalidArgument when it cannot be written.
Status write_checkpoint(const std::string& file, const NamedTensors& tensors,
                        const Position& position);
Status finish_checkpoint(const std::string& file);

/// Reads into `tensors`, in place.
/// Errors: kInvalidArgument: no such file, not a checkpoint, of a run with another `identity` (what
///         both are), a tensor that is missing or of another shape.
Result<Position> read_checkpoint(const std::string& file, const std::string& identity,
                                 NamedTensors tensors);

}  // namespace gradpress::trainer
