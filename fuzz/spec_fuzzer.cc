// Arbitrary codec texts: refused with a message, or parsed to something that prints and parses back
// to itself and whose payload arithmetic answers for any shape.
#include <cstdlib>
#include <string_view>

#include "spec/spec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace gradpress;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto spec = codec::parse_spec(text);
  if (!spec) {
    if (spec.error().message().empty()) std::abort();
    return 0;
  }
  const auto again = codec::parse_spec(codec::to_text(*spec));
  if (!again || !(*again == *spec)) std::abort();
  for (const Shape& shape : {Shape{0}, Shape{1}, Shape{kMaxElements}, Shape{1000, 70}}) {
    const std::uint64_t n = shape.elements();
    if (codec::kept_elements(*spec, n) > n) std::abort();
    if (codec::payload_bytes(*spec, shape, 0) > 16 * n + 16) std::abort();
  }
  return 0;
}
