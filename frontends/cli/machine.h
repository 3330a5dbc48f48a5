// What a measurement must say of itself: where and when it was made.
#pragma once

#include <string>

namespace gradpress::cli {

/// The CPU's own name and the number of cores this process may use: "AMD EPYC, 2 cores".
std::string machine_text();

/// Today, as 2026-11-15.
std::string date_text();

}  // namespace gradpress::cli
