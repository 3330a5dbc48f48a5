// Counts every allocation of the program it is linked into; needs the --wrap flags beside it in
// CMakeLists.txt.
#pragma once

#include <cstddef>

namespace gradpress::test {

/// Allocations since the program began. Threads: one.
std::size_t allocations();

}  // namespace gradpress::test
