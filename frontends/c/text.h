// Text that a call returns.
#pragma once

#include <gradpress/c_api.h>

#include <cstddef>
#include <span>
#include <string>

#include "base/json.h"

struct gradpress_text {
  std::string bytes;
};

namespace gradpress::c_api {

/// The caller's, to be freed by gradpress_text_free. May throw std::bad_alloc.
gradpress_text* make_text(std::string bytes);
gradpress_text* make_text(std::span<const std::byte> bytes);
/// Text inside that is not UTF-8 is replaced.
gradpress_text* text_of(const Json& json);

}  // namespace gradpress::c_api
