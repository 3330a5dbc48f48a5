#include "spec/spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>

#include "spec/facts.h"

namespace gradpress::codec {

namespace {

/// A chunk stays in the first-level cache while it is selected from.
constexpr double kLeastChunk = 16.0;
constexpr double kMostChunk = 4096.0;

std::string known_names() {
  std::string names;
  for (const Facts& facts : all_facts()) names.append(names.empty() ? "" : ", ").append(facts.name);
  return names;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

Status set_chunk(std::string_view text, std::string_view value, Spec& spec);

Status set_value(const Facts& facts, std::string_view text, std::string_view value, Spec& spec) {
  const auto number = parse_number(value);
  const auto wrong = [&](std::string_view wanted) {
    return Status::error(Code::kInvalidArgument, "codec \"", text, "\": wanted ", wanted,
                         " after \"", facts.name, ":\", got \"", value, "\"");
  };
  switch (facts.value) {
    case Value::kNothing:
      return Status::error(Code::kInvalidArgument, "codec \"", text, "\": ", facts.name,
                           " takes no value, got \"", value, "\"");
    case Value::kRatio:
      if (!number || *number <= 0.0 || *number > 1.0) return wrong("a ratio above 0 and at most 1");
      spec.ratio = *number;
      return {};
    case Value::kBits:
      if (!number || (*number != 2.0 && *number != 4.0 && *number != 8.0))
        return wrong("2, 4 or 8 bits");
      spec.bits = static_cast<unsigned>(*number);
      return {};
    case Value::kChunk:
      return set_chunk(text, value, spec);
    case Value::kRank:
      if (!number || *number < 1.0 || *number > 1024.0 || *number != std::floor(*number)) {
        return wrong("a whole rank from 1 to 1024");
      }
      spec.rank = static_cast<unsigned>(*number);
      return {};
    case Value::kMomentum:
      if (!number || *number < 0.0 || *number >= 1.0) {
        return wrong("a momentum of at least 0 and below 1");
      }
      spec.momentum = *number;
      return {};
  }
  return {};
}

/// "64/4096".
std::optional<std::pair<double, double>> parse_quotient(std::string_view text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto above = parse_number(text.substr(0, slash));
  const auto below = parse_number(text.substr(slash + 1));
  if (!above || !below || *above != std::floor(*above) || *below != std::floor(*below)) {
    return std::nullopt;
  }
  return std::pair(*above, *below);
}

Status set_chunk(std::string_view text, std::string_view value, Spec& spec) {
  const auto parts = parse_quotient(value);
  if (!parts || parts->second < kLeastChunk || parts->second > kMostChunk || parts->first < 1.0 ||
      parts->first > parts->second) {
    return Status::error(Code::kInvalidArgument, "codec \"", text,
                         "\": wanted kept elements and elements of a chunk after \"chunktopk:\", "
                         "such as 64/4096, the chunk from ",
                         kLeastChunk, " to ", kMostChunk, ", got \"", value, "\"");
  }
  spec.chunk_kept = static_cast<std::uint32_t>(parts->first);
  spec.chunk = static_cast<std::uint32_t>(parts->second);
  return {};
}

Status set_key(const Facts& facts, std::string_view text, std::string_view part, Spec& spec) {
  const std::size_t equals = part.find('=');
  const std::string_view name = part.substr(0, equals);
  const auto* key =
      std::ranges::find(facts.keys.begin(), facts.keys.end(), name, &Key::name).base();
  if (key == facts.keys.data() + facts.keys.size()) {
    std::string keys;
    for (const Key& known : facts.keys) keys.append(keys.empty() ? "" : ", ").append(known.name);
    return Status::error(Code::kInvalidArgument, "codec \"", text, "\": ", facts.name,
                         " has no parameter \"", name, "\"; it has ", keys.empty() ? "none" : keys);
  }
  const std::string_view value = part.substr(equals + 1);
  if (!key->words.empty()) {
    const auto word = std::ranges::find(key->words, value);
    if (word == key->words.end()) {
      std::string words;
      for (const auto known : key->words) words.append(words.empty() ? "" : ", ").append(known);
      return Status::error(Code::kInvalidArgument, "codec \"", text, "\": ", name, " wants one of ",
                           words, ", got \"", value, "\"");
    }
    key->set(spec, static_cast<double>(word - key->words.begin()));
    return {};
  }
  const auto number = parse_number(value);
  if (!number || *number < key->least || *number > key->most ||
      (key->whole && *number != std::floor(*number))) {
    return Status::error(Code::kInvalidArgument, "codec \"", text, "\": ", name, " wants a ",
                         key->whole ? "whole " : "", "number from ", key->least, " to ", key->most,
                         ", got \"", value, "\"");
  }
  key->set(spec, *number);
  return {};
}

}  // namespace

Result<Spec> parse_spec(std::string_view text) {
  const std::size_t colon = text.find(':');
  const Facts* const facts = find_facts(text.substr(0, colon));
  if (facts == nullptr) {
    return fail(Code::kInvalidArgument, "unknown codec \"", text, "\"; known are ", known_names());
  }
  Spec spec;
  spec.kind = facts->kind;
  bool has_value = facts->value == Value::kNothing;
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  bool more = colon != std::string_view::npos;
  while (more) {
    const std::size_t next = rest.find(':');
    const std::string_view part = rest.substr(0, next);
    more = next != std::string_view::npos;
    rest = more ? rest.substr(next + 1) : "";
    Status status;
    if (part.find('=') != std::string_view::npos) {
      status = set_key(*facts, text, part, spec);
    } else if (has_value && facts->value != Value::kNothing) {
      status = Status::error(Code::kInvalidArgument, "codec \"", text, "\": \"", part,
                             "\" is a second value; further parameters are written key=number");
    } else {
      status = set_value(*facts, text, part, spec);
      has_value = true;
    }
    if (!status.is_ok()) return tl::unexpected(status);
  }
  if (!has_value) {
    return fail(Code::kInvalidArgument, "codec \"", text, "\": ", facts->name,
                " needs a value: write ", facts->example);
  }
  if (spec.unbiased && spec.value != ValueCode::kFp32) {
    return fail(Code::kInvalidArgument, "codec \"", text,
                "\": unbiased=1 goes with value=fp32 alone: rounded values are biased");
  }
  return spec;
}

std::optional<double> value_of(const Spec& spec) {
  switch (facts_of(spec).value) {
    case Value::kNothing:
      return std::nullopt;
    case Value::kRatio:
      return spec.ratio;
    case Value::kBits:
      return spec.bits;
    case Value::kRank:
      return spec.rank;
    case Value::kChunk:
      return static_cast<double>(spec.chunk_kept) / spec.chunk;
    case Value::kMomentum:
      return spec.momentum;
  }
  return std::nullopt;
}

std::string to_text(const Spec& spec) {
  const Facts& facts = facts_of(spec.kind);
  std::string text(facts.name);
  const auto add = [&text](std::string_view before, double value) {
    text += before;
    detail::append_number(text, value);
  };
  if (facts.value == Value::kChunk) {
    add(":", spec.chunk_kept);
    add("/", spec.chunk);
  } else if (const auto value = value_of(spec)) {
    add(":", *value);
  }
  const Spec defaults;
  for (const Key& key : facts.keys) {
    if (key.get(spec) == key.get(defaults)) continue;
    text.append(":").append(key.name);
    if (key.words.empty()) {
      add("=", key.get(spec));
    } else {
      text.append("=").append(key.words[static_cast<std::size_t>(key.get(spec))]);
    }
  }
  return text;
}

}  // namespace gradpress::codec
