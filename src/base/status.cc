#include <gradpress/status.h>
#include <gradpress/version.h>

#include <charconv>
#include <utility>

namespace gradpress {

#define GRADPRESS_STRINGIFY_1(x) #x
#define GRADPRESS_STRINGIFY(x) GRADPRESS_STRINGIFY_1(x)

std::string_view version() {
  return GRADPRESS_STRINGIFY(GRADPRESS_VERSION_MAJOR) "." GRADPRESS_STRINGIFY(
      GRADPRESS_VERSION_MINOR) "." GRADPRESS_STRINGIFY(GRADPRESS_VERSION_PATCH);
}

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kNonFinite:
      return "non-finite gradient";
    case Code::kCorruptPayload:
      return "corrupt payload";
    case Code::kPeerLost:
      return "peer lost";
    case Code::kInternal:
      return "internal error";
  }
  return "unknown";
}

namespace detail {

namespace {
template <class T>
void append_chars(std::string& text, T value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value);
  text.append(digits, end.ptr);
}
}  // namespace

void append(std::string& text, std::string_view part) { text.append(part); }
void append_number(std::string& text, double value) { append_chars(text, value); }
void append_number(std::string& text, std::int64_t value) { append_chars(text, value); }
void append_number(std::string& text, std::uint64_t value) { append_chars(text, value); }

}  // namespace detail

Status::Status(Code code, std::string message)
    : code_(code), message_(std::make_shared<const std::string>(std::move(message))) {}

const std::string& Status::message() const noexcept {
  static const std::string kEmpty;
  return message_ ? *message_ : kEmpty;
}

std::string Status::to_string() const {
  std::string text(code_name(code_));
  if (message_) text.append(": ").append(*message_);
  return text;
}

}  // namespace gradpress
