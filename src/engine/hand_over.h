// What goes from one plan to the next: residuals and momentum.
#pragma once

#include <gradpress/status.h>

#include "engine/exchange.h"
#include "engine/runtime.h"
#include "engine/velocity.h"

namespace gradpress::engine {

/// Moves what `from`'s tensors keep to `to`, of the same tensors. Nothing is lost: workers × what
/// was applied plus what is kept is the same before and after.
///
/// With momentum, a sparsifier's residual holds numbers that had their momentum, any other's holds
/// gradients that are still to get it: the first goes on as such a residual or is carried past the
/// momentum (Velocity::carry), the second goes before it. Momentum itself moves as it is between
/// sparsifiers of workers' own gradients, and by its mean over the workers otherwise.
///
/// Every rank calls it between steps. `velocity` is null without momentum.
/// Cost:   a pass over the residuals; with momentum up to two raw all-reduces of the tensors for
/// which
///         the place of the momentum changes.
/// Errors: the group's; kNonFinite on a residual out of range.
Status hand_over(Runtime& from, Runtime& to, Velocity* velocity, Exchange& exchange);
/// The same without momentum. It reaches no other rank.
Status hand_over_residuals(Runtime& from, Runtime& to);

}  // namespace gradpress::engine
