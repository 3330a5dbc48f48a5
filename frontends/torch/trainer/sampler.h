// Which samples a worker takes when: a shuffle per epoch, the same on every rank, of which each
// takes its share.
#pragma once

#include <cstdint>
#include <vector>

namespace gradpress::trainer {

struct SamplerOptions {
  std::int64_t samples = 0;
  std::int64_t batch = 1;  ///< per worker and backward
  std::int64_t accumulate = 1;
  unsigned workers = 1;
  unsigned rank = 0;
  std::uint64_t seed = 0;
};

/// Threads: one at a time.
class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options) : options_(options) {}

  /// What is left over at an epoch's end is not used in that epoch. 0: too few samples.
  std::int64_t steps_per_epoch() const;
  /// Of all workers.
  std::int64_t samples_per_step() const;
  /// This worker's samples of one backward. Depends on the arguments alone, so that a run can begin
  /// anywhere. Cost: a shuffle when the epoch is another than the last time.
  /// Requires: steps_per_epoch() > 0, part < accumulate.
  std::vector<std::int64_t> indices(std::int64_t step, std::int64_t part);

 private:
  SamplerOptions options_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;
};

}  // namespace gradpress::trainer
