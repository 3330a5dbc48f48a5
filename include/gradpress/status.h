// How gradpress reports failure: a value, never an exception, a print or an exit.
#pragma once

#include <gradpress/api.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace gradpress {

/// Sorted by what the caller does next.
enum class Code : std::uint8_t {
  kOk,
  kInvalidArgument,  ///< the call or the input is wrong: fix it, never retry
  kNonFinite,  ///< a gradient holds NaN, infinity or a magnitude beyond kGradientLimit: skip the
               ///< step
  kCorruptPayload,  ///< bytes do not decode: drop this step, keep the residual
  kPeerLost,        ///< a rank is gone: rebuild the group, replay the step
  kInternal,        ///< our bug: report it
};

GRADPRESS_API std::string_view code_name(Code code);

namespace detail {
GRADPRESS_API void append(std::string& text, std::string_view part);
GRADPRESS_API void append_number(std::string& text, double value);
GRADPRESS_API void append_number(std::string& text, std::int64_t value);
GRADPRESS_API void append_number(std::string& text, std::uint64_t value);
template <std::floating_point T>
void append(std::string& text, T value) {
  append_number(text, static_cast<double>(value));
}
template <std::signed_integral T>
void append(std::string& text, T value) {
  append_number(text, static_cast<std::int64_t>(value));
}
template <std::unsigned_integral T>
void append(std::string& text, T value) {
  append_number(text, static_cast<std::uint64_t>(value));
}
}  // namespace detail

/// Success, or a code and a message that says what happened, wanted and got.
/// Free when ok: no allocation. Copyable; threads may share a const Status.
class [[nodiscard]] GRADPRESS_API Status {
 public:
  Status() = default;

  /// Joins the parts (text and numbers) into the message.
  template <class... Parts>
  static Status error(Code code, const Parts&... parts) {
    std::string text;
    (detail::append(text, parts), ...);
    return Status(code, std::move(text));
  }

  bool is_ok() const noexcept { return code_ == Code::kOk; }
  explicit operator bool() const noexcept { return is_ok(); }
  Code code() const noexcept { return code_; }
  /// Empty when ok.
  const std::string& message() const noexcept;
  /// "invalid argument: topk: …", or "ok".
  std::string to_string() const;

 private:
  Status(Code code, std::string message);

  Code code_ = Code::kOk;
  std::shared_ptr<const std::string> message_;
};

/// A value, or the Status that explains its absence.
template <class T>
using Result = tl::expected<T, Status>;

/// `return fail(Code::kInvalidArgument, "…")` from a function that returns Result<T>.
template <class... Parts>
tl::unexpected<Status> fail(Code code, const Parts&... parts) {
  return tl::unexpected<Status>(Status::error(code, parts...));
}

}  // namespace gradpress
