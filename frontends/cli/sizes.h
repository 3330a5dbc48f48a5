// Sizes on the command line, as nccl-tests reads them.
#pragma once

#include <gradpress/status.h>

#include <cstddef>
#include <string>

namespace gradpress::cli {

/// "64M" is 64 · 2^20 bytes; K, M, G or nothing. Errors: kInvalidArgument outside 4 to 16G.
Result<std::size_t> parse_bytes(const std::string& text);

}  // namespace gradpress::cli
