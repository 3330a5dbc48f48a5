#include "options.h"

#include <algorithm>
#include <cmath>

namespace gradpress::c_api {

namespace {

constexpr double kMostSeconds = 1e9;

Result<bool> truth_of(const plan::Field& field) {
  if (!field.json().is_boolean()) return field.wrong("true or false");
  return field.json().get<bool>();
}

}  // namespace

Result<Json> parse_json(const char* text, std::string_view name, const Json& otherwise) {
  if (text == nullptr || *text == '\0') return otherwise;
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    return fail(Code::kInvalidArgument, name, ": not JSON: ", error.what());
  }
}

OptionReader::OptionReader(const plan::Field& object) : object_(object) {
  if (object.json().is_object()) return;
  keep(object.where().empty() ? Status::error(Code::kInvalidArgument, object.file(),
                                              ": wanted a JSON object, got ", object.json().dump())
                              : object.wrong("an object").value());
}

std::optional<plan::Field> OptionReader::find(std::string_view name) {
  known_.push_back(name);
  if (!status_.is_ok() || !object_.has(name)) return std::nullopt;
  const auto field = object_.at(name);
  return field ? std::optional(*field) : std::nullopt;
}

void OptionReader::read(std::string_view name, std::string& out) {
  with(name, [&](const plan::Field& field) {
    auto text = field.text();
    if (!text) return text.error();
    out = std::move(*text);
    return Status();
  });
}

void OptionReader::read(std::string_view name, bool& out) {
  with(name, [&](const plan::Field& field) {
    const auto truth = truth_of(field);
    if (!truth) return truth.error();
    out = *truth;
    return Status();
  });
}

void OptionReader::read(std::string_view name, std::optional<bool>& out) {
  with(name, [&](const plan::Field& field) {
    const auto truth = truth_of(field);
    if (!truth) return truth.error();
    out = *truth;
    return Status();
  });
}

void OptionReader::read(std::string_view name, double& out, double least) {
  with(name, [&](const plan::Field& field) {
    const auto number = field.number(least);
    if (!number) return number.error();
    out = *number;
    return Status();
  });
}

void OptionReader::read(std::string_view name, std::uint64_t& out) {
  with(name, [&](const plan::Field& field) {
    // Beyond 2^53 a double cannot tell whole numbers apart.
    if (field.json().is_number_unsigned()) {
      out = field.json().get<std::uint64_t>();
      return Status();
    }
    const auto number = field.whole(0, std::uint64_t{1} << 53);
    if (!number) return number.error();
    out = *number;
    return Status();
  });
}

void OptionReader::read(std::string_view name, std::vector<std::string>& out) {
  with(name, [&](const plan::Field& field) {
    const auto length = field.length();
    if (!length) return length.error();
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < *length; ++i) {
      auto text = field.at(i).text();
      if (!text) return text.error();
      texts.push_back(std::move(*text));
    }
    out = std::move(texts);
    return Status();
  });
}

void OptionReader::read(std::string_view name, std::chrono::milliseconds& out) {
  with(name, [&](const plan::Field& field) {
    const auto seconds = field.number(0.0);
    if (!seconds) return seconds.error();
    if (*seconds == 0.0 || *seconds > kMostSeconds) {
      return field.wrong("a number of seconds above 0").value();
    }
    out = std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(*seconds * 1000.0)));
    return Status();
  });
}

void OptionReader::read_whole(std::string_view name, unsigned& out, unsigned least) {
  with(name, [&](const plan::Field& field) {
    const auto number = field.whole(least, std::numeric_limits<std::uint32_t>::max());
    if (!number) return number.error();
    out = static_cast<unsigned>(*number);
    return Status();
  });
}

void OptionReader::read_whole(std::string_view name, std::optional<unsigned>& out) {
  with(name, [&](const plan::Field& field) {
    const auto number = field.whole(0, std::numeric_limits<std::uint32_t>::max());
    if (!number) return number.error();
    out = static_cast<unsigned>(*number);
    return Status();
  });
}

Status OptionReader::finish() const {
  if (!status_.is_ok()) return status_;
  for (const auto& [name, value] : object_.json().items()) {
    if (std::ranges::find(known_, name) != known_.end()) continue;
    std::string names;
    for (const std::string_view known : known_) {
      names.append(names.empty() ? "" : ", ").append(known);
    }
    const std::string where = object_.where();
    return Status::error(Code::kInvalidArgument, object_.file(), ": ", where,
                         where.empty() ? "" : ".", name, ": unknown; known are ", names);
  }
  return {};
}

}  // namespace gradpress::c_api
