#include "sizes.h"

#include <exception>

namespace gradpress::cli {

namespace {

constexpr std::size_t kLargestBytes = std::size_t{1} << 34;

}  // namespace

Result<std::size_t> parse_bytes(const std::string& text) {
  std::size_t digits = 0;
  double value = 0.0;
  try {
    value = std::stod(text, &digits);
  } catch (const std::exception&) {
    digits = 0;
  }
  const std::string unit = text.substr(digits);
  double scale = 0.0;
  if (unit.empty()) scale = 1.0;
  if (unit == "K") scale = 0x1.0p10;
  if (unit == "M") scale = 0x1.0p20;
  if (unit == "G") scale = 0x1.0p30;
  const double bytes = value * scale;
  if (digits == 0 || !(bytes >= 4.0 && bytes <= static_cast<double>(kLargestBytes))) {
    return fail(Code::kInvalidArgument, "wanted a size from 4 to 16G, such as 64M, got \"", text,
                "\"");
  }
  return static_cast<std::size_t>(bytes);
}

}  // namespace gradpress::cli
