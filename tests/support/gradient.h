// Test data: gradients that look like gradients, from a printed seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradpress::test {

/// Heavy-tailed (a normal divided by a small uniform power), both signs, mean near zero, a few
/// exact zeros. The same seed gives the same values on every machine.
std::vector<float> gradient(std::size_t elements, std::uint64_t seed);

/// Multiples of 2^-12 between -4 and 4, none of them zero: sums of up to 512 are exact in float, in
/// any order.
std::vector<float> grid_gradient(std::size_t elements, std::uint64_t seed);

}  // namespace gradpress::test
