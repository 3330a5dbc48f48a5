#include "plan/field.h"

#include <cmath>

namespace gradpress::plan {

namespace {

std::string shortened(const Json& value) {
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) {
    text.resize(57);
    text += "...";
  }
  return text;
}

}  // namespace

std::string Field::where() const {
  if (parent_ == nullptr) return {};
  std::string path = parent_->where();
  if (key_.empty()) return path + "[" + std::to_string(index_) + "]";
  if (!path.empty()) path += ".";
  return path.append(key_);
}

tl::unexpected<Status> Field::wrong(std::string_view wanted) const {
  const std::string path = where();
  return fail(Code::kInvalidArgument, file_, ": ", path.empty() ? "the whole file" : path,
              ": wanted ", wanted, ", got ", shortened(value_));
}

Result<Field> Field::at(std::string_view key) const {
  if (!value_.is_object()) return wrong("an object");
  const auto found = value_.find(key);
  if (found == value_.end()) {
    const std::string path = where();
    return fail(Code::kInvalidArgument, file_, ": ", path, path.empty() ? "" : ".", key,
                ": missing");
  }
  return Field(*found, *this, key, 0);
}

Field Field::at(std::size_t index) const { return Field(value_[index], *this, {}, index); }

Result<std::string> Field::text() const {
  if (!value_.is_string()) return wrong("a text");
  return value_.get<std::string>();
}

Result<double> Field::number(double least) const {
  const double number = value_.is_number() ? value_.get<double>() : NAN;
  if (!std::isfinite(number) || number < least) {
    std::string wanted = "a number of at least ";
    detail::append_number(wanted, least);
    return wrong(wanted);
  }
  return number;
}

Result<std::uint64_t> Field::whole(std::uint64_t least, std::uint64_t most) const {
  const double number = value_.is_number() ? value_.get<double>() : NAN;
  if (!(number >= static_cast<double>(least) && number <= static_cast<double>(most)) ||
      number != std::floor(number)) {
    return wrong("a whole number from " + std::to_string(least) + " to " + std::to_string(most));
  }
  return value_.is_number_unsigned() ? value_.get<std::uint64_t>()
                                     : static_cast<std::uint64_t>(number);
}

Result<std::size_t> Field::length() const {
  if (!value_.is_array()) return wrong("a list");
  return value_.size();
}

Result<Json> read_format(const std::string& file, std::string_view format) {
  auto json = read_json(file);
  if (!json) return json;
  const Field root(*json, file);
  const auto field = root.at("format");
  if (!field) return tl::unexpected(field.error());
  const auto got = field->text();
  if (!got) return tl::unexpected(got.error());
  if (*got != format) return field->wrong(std::string("\"").append(format).append("\""));
  return json;
}

}  // namespace gradpress::plan
