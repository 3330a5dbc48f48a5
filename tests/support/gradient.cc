#include "support/gradient.h"

namespace gradpress::test {

namespace {

/// xorshift64*, deliberately not the library's own generator.
class Uniform {
 public:
  explicit Uniform(std::uint64_t seed) : state_(seed * 2862933555777941757U + 3037000493U) {}

  double operator()() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<double>((state_ * 0x2545F4914F6CDD1DU) >> 11) * 0x1.0p-53;
  }

 private:
  std::uint64_t state_;
};

}  // namespace

std::vector<float> gradient(std::size_t elements, std::uint64_t seed) {
  Uniform uniform(seed);
  std::vector<float> values(elements);
  for (float& value : values) {
    double normal = -3.0;
    for (int i = 0; i < 6; ++i) normal += uniform();
    const double tail = uniform() + 0.02;
    value = uniform() < 0.01 ? 0.0F : static_cast<float>(0.01 * normal / (tail * tail));
  }
  return values;
}

std::vector<float> grid_gradient(std::size_t elements, std::uint64_t seed) {
  Uniform uniform(seed);
  std::vector<float> values(elements);
  for (float& value : values) {
    const auto steps = 1 + static_cast<int>(uniform() * 16383.0);
    value = static_cast<float>(uniform() < 0.5 ? -steps : steps) * 0x1.0p-12F;
  }
  return values;
}

}  // namespace gradpress::test
