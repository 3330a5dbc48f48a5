// The boundary: what is thrown or fails behind it becomes a code and a text.
#pragma once

#include <gradpress/c_api.h>
#include <gradpress/status.h>
#include <unistd.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "text.h"

namespace gradpress::c_api {

constexpr gradpress_code code_of(Code code) {
  switch (code) {
    case Code::kOk:
      return GRADPRESS_OK;
    case Code::kInvalidArgument:
      return GRADPRESS_INVALID_ARGUMENT;
    case Code::kNonFinite:
      return GRADPRESS_NON_FINITE;
    case Code::kCorruptPayload:
      return GRADPRESS_CORRUPT_PAYLOAD;
    case Code::kPeerLost:
      return GRADPRESS_PEER_LOST;
    case Code::kInternal:
      return GRADPRESS_INTERNAL;
  }
  return GRADPRESS_INTERNAL;
}

/// A code that is not ok, with its text. Without memory for the text there is none.
inline gradpress_code report(gradpress_code code, std::string text,
                             gradpress_text** error) noexcept {
  if (error == nullptr) return code;
  try {
    *error = make_text(std::move(text));
  } catch (...) {
    *error = nullptr;
  }
  return code;
}

/// Runs the work of one function, which returns a Status. Nothing leaves but a code and a text.
template <class Work>
gradpress_code guarded(gradpress_text** error, const Work& work) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    const Status status = work();
    if (status.is_ok()) return GRADPRESS_OK;
    return report(code_of(status.code()), status.message(), error);
  } catch (const std::exception& thrown) {
    return report(GRADPRESS_INTERNAL, thrown.what(), error);
  } catch (...) {
    return report(GRADPRESS_INTERNAL, "unknown exception", error);
  }
}

/// The same for functions that cannot fail: what is thrown ends as `otherwise`.
template <class T, class Work>
T guarded_value(T otherwise, const Work& work) noexcept {
  try {
    return work();
  } catch (...) {
    return otherwise;
  }
}

template <class... Parts>
Status wrong(const Parts&... parts) {
  return Status::error(Code::kInvalidArgument, parts...);
}

/// "layout is NULL".
inline Status check_given(const void* argument, std::string_view name) {
  return argument != nullptr ? Status() : wrong(name, " is NULL");
}
/// A list may be NULL when it is empty.
inline Status check_list(const void* list, std::size_t count, std::string_view name) {
  return list != nullptr || count == 0 ? Status()
                                       : wrong(name, " is NULL, wanted ", count, " of them");
}

/// Whose handle it is: a forked child has the memory, but neither the threads nor the right to use
/// the connections.
class Owner {
 public:
  bool is_here() const { return process_ == getpid(); }

 private:
  pid_t process_ = getpid();
};

/// Whether a handle can be used. Requires: a member `owner`.
template <class Handle>
Status check_handle(const Handle* handle, std::string_view name) {
  if (Status status = check_given(handle, name); !status) return status;
  if (handle->owner.is_here()) return {};
  return wrong(name, " belongs to the process that made it, this is a forked child (process ",
               getpid(), "): make one here, or use it there");
}

/// Whether the free function of a handle must act.
template <class Handle>
bool is_ours(const Handle* handle) {
  return handle != nullptr && handle->owner.is_here();
}

}  // namespace gradpress::c_api
