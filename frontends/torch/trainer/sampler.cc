#include "sampler.h"

#include <numeric>
#include <utility>

#include "random.h"

namespace gradpress::trainer {

std::int64_t Sampler::samples_per_step() const {
  return options_.batch * options_.accumulate * options_.workers;
}

std::int64_t Sampler::steps_per_epoch() const { return options_.samples / samples_per_step(); }

std::vector<std::int64_t> Sampler::indices(std::int64_t step, std::int64_t part) {
  const std::int64_t epoch = step / steps_per_epoch();
  if (epoch != epoch_) {
    order_.resize(static_cast<std::size_t>(options_.samples));
    std::iota(order_.begin(), order_.end(), 0);
    Random random(options_.seed, 1000 + static_cast<std::uint64_t>(epoch));
    for (std::size_t i = order_.size(); i > 1; --i) {
      std::swap(order_[i - 1], order_[random.below(i)]);
    }
    epoch_ = epoch;
  }
  const std::int64_t first = step % steps_per_epoch() * samples_per_step() +
                             (part * options_.workers + options_.rank) * options_.batch;
  const auto begin = order_.begin() + first;
  return {begin, begin + options_.batch};
}

}  // namespace gradpress::trainer
