// Options as JSON objects: every name is asked for once, and what was not asked for is refused.
#pragma once

#include <gradpress/status.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "plan/field.h"

namespace gradpress::c_api {

/// Parses an argument. NULL and "" are `otherwise`.
/// Errors: kInvalidArgument, beginning with `name`, with the place.
Result<Json> parse_json(const char* text, std::string_view name, const Json& otherwise);

/// Reads one object. The first error stays; after it reads do nothing.
/// Requires: the field outlives it.
class OptionReader {
 public:
  explicit OptionReader(const plan::Field& object);

  /// Each leaves `out` as it is when the option is absent.
  void read(std::string_view name, std::string& out);
  void read(std::string_view name, bool& out);
  void read(std::string_view name, std::optional<bool>& out);
  void read(std::string_view name, double& out, double least = 0.0);
  void read(std::string_view name, std::uint64_t& out);
  void read(std::string_view name, std::vector<std::string>& out);
  /// Seconds above 0.
  void read(std::string_view name, std::chrono::milliseconds& out);
  void read_whole(std::string_view name, unsigned& out, unsigned least = 0);
  void read_whole(std::string_view name, std::optional<unsigned>& out);

  /// Calls work(field), which returns a Status, if the option is there.
  template <class Work>
  void with(std::string_view name, const Work& work) {
    if (const auto field = find(name)) keep(work(*field));
  }

  /// Errors: the first of all reads; kInvalidArgument on a name that nothing read, with the names
  /// that could be.
  Status finish() const;

 private:
  std::optional<plan::Field> find(std::string_view name);
  template <class T>
  bool keep(const Result<T>& result) {
    if (!result) keep(result.error());
    return result.has_value();
  }
  void keep(const Status& status) {
    if (status_.is_ok()) status_ = status;
  }

  const plan::Field& object_;
  std::vector<std::string_view> known_;
  Status status_;
};

}  // namespace gradpress::c_api
