// Fields of a JSON file, with errors that name the file and the path: "t.json: tensors[3].name: …".
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"

namespace gradpress::plan {

/// A place in a JSON file. Cheap to make; the path is spelt out in errors only.
/// Requires: the Json, the file name and the parent outlive it.
class Field {
 public:
  Field(const Json& value, std::string_view file) : value_(value), file_(file) {}

  const Json& json() const { return value_; }
  std::string_view file() const { return file_; }
  bool has(std::string_view key) const { return value_.is_object() && value_.contains(key); }

  /// Errors: kInvalidArgument when this is no object or has no such field.
  Result<Field> at(std::string_view key) const;
  /// Requires: an array longer than `index`.
  Field at(std::size_t index) const;

  Result<std::string> text() const;
  /// A finite number of at least `least`.
  Result<double> number(double least) const;
  /// A whole number from `least` to `most`.
  Result<std::uint64_t> whole(std::uint64_t least, std::uint64_t most) const;
  /// The length. Errors: no array.
  Result<std::size_t> length() const;

  /// "file: path: wanted …, got …".
  tl::unexpected<Status> wrong(std::string_view wanted) const;
  std::string where() const;

 private:
  Field(const Json& value, const Field& parent, std::string_view key, std::size_t index)
      : value_(value), file_(parent.file_), parent_(&parent), key_(key), index_(index) {}

  const Json& value_;
  std::string_view file_;
  const Field* parent_ = nullptr;
  std::string_view key_;  ///< empty for array elements
  std::size_t index_ = 0;
};

/// Reads a file and checks its `format` field. Errors: unreadable, no JSON, another format.
Result<Json> read_format(const std::string& file, std::string_view format);

}  // namespace gradpress::plan
