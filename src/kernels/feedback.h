// What an encode pass of a dense codec reads, and what it keeps for the next step.
#pragma once

#include <span>

namespace gradpress::kernels {

/// x = g + residual enters the payload, and the pass leaves x − (what the payload carries) in
/// `residual`. An empty residual says: no feedback, x = g. Elements of g that are NaN or of
/// magnitude `limit` and above count as zero, which leaves their residual in x, and are reported.
/// Requires: residual.size() == g.size(), or an empty residual.
struct FeedbackPass {
  std::span<const float> g;
  std::span<float> residual;
  float limit;

  /// Null without feedback.
  float* kept() const { return residual.empty() ? nullptr : residual.data(); }
};

}  // namespace gradpress::kernels
