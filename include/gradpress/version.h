// The version of the headers, and of the library that was linked.
#pragma once

#include <gradpress/api.h>

#include <string_view>

#define GRADPRESS_VERSION_MAJOR 0
#define GRADPRESS_VERSION_MINOR 1
#define GRADPRESS_VERSION_PATCH 0

namespace gradpress {

/// "0.1.0", of the library at run time.
GRADPRESS_API std::string_view version();

}  // namespace gradpress
