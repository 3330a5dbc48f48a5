// One worker's part of a run.
#pragma once

#include <gradpress/status.h>
#include <gradpress/world.h>

#include <atomic>
#include <memory>

#include "console.h"
#include "dataset.h"
#include "models.h"
#include "record.h"
#include "settings.h"

namespace gradpress::trainer {

/// What the workers of a process share; lives until all have returned.
struct Shared {
  const Settings& settings;
  const Dataset& data;
  Console& console;
  /// Set by anyone at any time: all workers end together, at a step within a fraction of a second.
  const std::atomic<bool>& stop;
};

/// Trains from the beginning, or from where a checkpoint was taken, to the end.
/// Threads: the worker's own; draws from no generator that others use.
/// Errors:  kInvalidArgument: settings that do not fit data, model or world; a checkpoint that does
///          not fit; the engine's and the world's; kInternal when workers ended with different
///          parameters.
Result<Record> run_worker(const Shared& shared, std::shared_ptr<Model> model, World world);

}  // namespace gradpress::trainer
