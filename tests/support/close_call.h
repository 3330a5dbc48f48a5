// How near an encode's decisions are to falling otherwise: another order of summation may differ in
// a float's last bit, and a sign, a rounding or a selection that hangs on that bit proves nothing.
#pragma once

#include <span>

#include "spec/spec.h"
#include "support/reading.h"

namespace gradpress::test {

/// The smallest change of one element of a shard, relative to the shard's largest magnitude, that
/// makes the codec decide otherwise; infinite where nothing is decided but a rounding of the value
/// itself (none, casts, randomk, low rank). Zeros that a selection leaves or takes are no decision:
/// they carry nothing, and every order of summation gives them.
/// It is 0 for codecs whose decisions it does not follow; it does for topk, redsync (a search only
/// where it is not reused), efsign, sign, and qsgd with one block.
/// Requires: `x` is what the encode sees, gradient plus residual.
double closest_call(const codec::Spec& spec, std::span<const float> x, const Words& words);

}  // namespace gradpress::test
