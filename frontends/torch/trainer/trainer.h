// A whole run: data, world, one thread per worker of this process.
#pragma once

#include <gradpress/status.h>

#include <atomic>

#include "record.h"
#include "settings.h"

namespace gradpress::trainer {

/// Trains as the settings say and tells a person about it on standard output, if this process is
/// the one that speaks. Writes what the settings name.
/// Threads: one run at a time in a process: it seeds torch's generator.
/// Errors:  check()'s, the data's, the world's, the workers'.
Result<Record> train(const Settings& settings, const std::atomic<bool>& stop);

}  // namespace gradpress::trainer
