#include "codec/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

namespace gradpress::codec {

namespace {

/// What follows the name's colon.
enum class Value : std::uint8_t { kNothing, kRatio, kBits, kRank };

/// One "key=number" a codec takes, and the range it must lie in.
struct Key {
  std::string_view name;
  double least;
  double most;
  bool whole;
  double (*get)(const Spec&);
  void (*set)(Spec&, double);
};

struct Entry {
  Kind kind;
  std::string_view name;
  Value value;
  std::span<const Key> keys;
};

#define GRADPRESS_KEY(name, least, most, whole, field)                         \
  Key {                                                                        \
    name, least, most, whole, [](const Spec& s) { return double(s.field); },   \
        [](Spec& s, double v) { s.field = static_cast<decltype(s.field)>(v); } \
  }

constexpr double kMost = 4294967295.0;
constexpr std::array kBlockKeys = {GRADPRESS_KEY("block", 16, 1048576, true, block)};
constexpr std::array kTernGradKeys = {GRADPRESS_KEY("clip", 0, 1000, false, clip_sigmas)};
constexpr std::array kDgcKeys = {GRADPRESS_KEY("sample", 0.0001, 1, false, sample)};
constexpr std::array kRedSyncKeys = {
    GRADPRESS_KEY("exact", 0, kMost, true, redsync.exact_max),
    GRADPRESS_KEY("trimmed", 0, kMost, true, redsync.trimmed_max),
    GRADPRESS_KEY("trim", 0, 1, false, redsync.trim_start),
    GRADPRESS_KEY("trim-step", 0.001, 1, false, redsync.trim_step),
    GRADPRESS_KEY("low", 0, 1, false, redsync.band_low),
    GRADPRESS_KEY("high", 1, 1000, false, redsync.band_high),
    GRADPRESS_KEY("probes", 1, 64, true, redsync.probes),
    GRADPRESS_KEY("reuse", 1, 1000000, true, redsync.reuse),
};
#undef GRADPRESS_KEY

constexpr std::array kEntries = {
    Entry{Kind::kNone, "none", Value::kNothing, {}},
    Entry{Kind::kFp16, "fp16", Value::kNothing, {}},
    Entry{Kind::kBf16, "bf16", Value::kNothing, {}},
    Entry{Kind::kSign, "sign", Value::kNothing, {}},
    Entry{Kind::kEfSign, "efsign", Value::kNothing, {}},
    Entry{Kind::kOneBit, "onebit", Value::kNothing, {}},
    Entry{Kind::kTopK, "topk", Value::kRatio, {}},
    Entry{Kind::kRandomK, "randomk", Value::kRatio, {}},
    Entry{Kind::kDgc, "dgc", Value::kRatio, kDgcKeys},
    Entry{Kind::kRedSync, "redsync", Value::kRatio, kRedSyncKeys},
    Entry{Kind::kRedSyncQ, "redsync-q", Value::kRatio, kRedSyncKeys},
    Entry{Kind::kQsgd, "qsgd", Value::kBits, kBlockKeys},
    Entry{Kind::kTernGrad, "terngrad", Value::kNothing, kTernGradKeys},
    Entry{Kind::kNatural, "natural", Value::kNothing, {}},
    Entry{Kind::kInt8, "int8", Value::kNothing, kBlockKeys},
    Entry{Kind::kPowerSgd, "powersgd", Value::kRank, {}},
    Entry{Kind::kAcpSgd, "acpsgd", Value::kRank, {}},
};

const Entry* find_entry(std::string_view name) {
  const auto* found = std::ranges::find(kEntries, name, &Entry::name);
  return found == kEntries.end() ? nullptr : &*found;
}

const Entry& entry_of(Kind kind) { return *std::ranges::find(kEntries, kind, &Entry::kind); }

std::string known_names() {
  std::string names;
  for (const Entry& entry : kEntries) names.append(names.empty() ? "" : ", ").append(entry.name);
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

Status set_value(const Entry& entry, std::string_view text, std::string_view value, Spec& spec) {
  const auto number = parse_number(value);
  const auto wrong = [&](std::string_view wanted) {
    return Status::error(Code::kInvalidArgument, "codec \"", text, "\": wanted ", wanted,
                         " after \"", entry.name, ":\", got \"", value, "\"");
  };
  switch (entry.value) {
    case Value::kNothing:
      return Status::error(Code::kInvalidArgument, "codec \"", text, "\": ", entry.name,
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
    case Value::kRank:
      if (!number || *number < 1.0 || *number > 1024.0 || *number != std::floor(*number)) {
        return wrong("a whole rank from 1 to 1024");
      }
      spec.rank = static_cast<unsigned>(*number);
      return {};
  }
  return {};
}

Status set_key(const Entry& entry, std::string_view text, std::string_view part, Spec& spec) {
  const std::size_t equals = part.find('=');
  const std::string_view name = part.substr(0, equals);
  const auto* key =
      std::ranges::find(entry.keys.begin(), entry.keys.end(), name, &Key::name).base();
  if (key == entry.keys.data() + entry.keys.size()) {
    std::string keys;
    for (const Key& known : entry.keys) keys.append(keys.empty() ? "" : ", ").append(known.name);
    return Status::error(Code::kInvalidArgument, "codec \"", text, "\": ", entry.name,
                         " has no parameter \"", name, "\"; it has ", keys.empty() ? "none" : keys);
  }
  const auto number = parse_number(part.substr(equals + 1));
  if (!number || *number < key->least || *number > key->most ||
      (key->whole && *number != std::floor(*number))) {
    return Status::error(Code::kInvalidArgument, "codec \"", text, "\": ", name, " wants a ",
                         key->whole ? "whole " : "", "number from ", key->least, " to ", key->most,
                         ", got \"", part.substr(equals + 1), "\"");
  }
  key->set(spec, *number);
  return {};
}

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace

Result<Spec> parse_spec(std::string_view text) {
  const std::size_t colon = text.find(':');
  const Entry* const entry = find_entry(text.substr(0, colon));
  if (entry == nullptr) {
    return fail(Code::kInvalidArgument, "unknown codec \"", text, "\"; known are ", known_names());
  }
  Spec spec;
  spec.kind = entry->kind;
  bool has_value = entry->value == Value::kNothing;
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  bool more = colon != std::string_view::npos;
  while (more) {
    const std::size_t next = rest.find(':');
    const std::string_view part = rest.substr(0, next);
    more = next != std::string_view::npos;
    rest = more ? rest.substr(next + 1) : "";
    Status status;
    if (part.find('=') != std::string_view::npos) {
      status = set_key(*entry, text, part, spec);
    } else if (has_value && entry->value != Value::kNothing) {
      status = Status::error(Code::kInvalidArgument, "codec \"", text, "\": \"", part,
                             "\" is a second value; further parameters are written key=number");
    } else {
      status = set_value(*entry, text, part, spec);
      has_value = true;
    }
    if (!status.is_ok()) return tl::unexpected(status);
  }
  if (!has_value) {
    const std::string_view example = entry->value == Value::kRatio  ? "0.01"
                                     : entry->value == Value::kBits ? "8"
                                                                    : "4";
    return fail(Code::kInvalidArgument, "codec \"", text, "\": ", entry->name,
                " needs a value: write ", entry->name, ":", example);
  }
  return spec;
}

std::string to_text(const Spec& spec) {
  const Entry& entry = entry_of(spec.kind);
  std::string text(entry.name);
  const auto add = [&text](std::string_view before, double value) {
    text += before;
    detail::append_number(text, value);
  };
  if (entry.value == Value::kRatio) add(":", spec.ratio);
  if (entry.value == Value::kBits) add(":", spec.bits);
  if (entry.value == Value::kRank) add(":", spec.rank);
  const Spec defaults;
  for (const Key& key : entry.keys) {
    if (key.get(spec) == key.get(defaults)) continue;
    text.append(":").append(key.name);
    add("=", key.get(spec));
  }
  return text;
}

std::uint64_t kept_elements(const Spec& spec, std::uint64_t elements) {
  if (elements == 0) return 0;
  const double product = std::ceil(spec.ratio * static_cast<double>(elements));
  return std::clamp<std::uint64_t>(static_cast<std::uint64_t>(product), 1, elements);
}

std::uint64_t effective_rank(const Spec& spec, const Shape& shape) {
  if (!shape.is_matrix()) return 0;
  return std::min<std::uint64_t>({spec.rank, shape.rows(), shape.cols()});
}

std::uint64_t payload_bytes(const Spec& spec, const Shape& shape, unsigned round) {
  const std::uint64_t n = shape.elements();
  switch (spec.kind) {
    case Kind::kNone:
      return 4 * n;
    case Kind::kFp16:
    case Kind::kBf16:
      return 2 * n;
    case Kind::kSign:
      return 4 * ceil_div(n, 32);
    case Kind::kEfSign:
      return 4 * ceil_div(n, 32) + 4;
    case Kind::kOneBit:
      return 4 * ceil_div(n, 32) + 8;
    case Kind::kTopK:
    case Kind::kDgc:
    case Kind::kRedSync:
      return 8 * kept_elements(spec, n);
    case Kind::kRandomK:
      return 4 * kept_elements(spec, n);
    case Kind::kRedSyncQ:
      return 4 * kept_elements(spec, n) + 4;
    case Kind::kQsgd:
      return ceil_div(n * spec.bits, 8) + 4 * ceil_div(n, spec.block);
    case Kind::kTernGrad:
      return ceil_div(n, 4) + 4;
    case Kind::kNatural:
      return n;
    case Kind::kInt8:
      return n + 4 * ceil_div(n, spec.block);
    case Kind::kPowerSgd:
    case Kind::kAcpSgd: {
      const std::uint64_t rank = effective_rank(spec, shape);
      if (rank == 0) return round == 0 || spec.kind == Kind::kAcpSgd ? 4 * n : 0;
      return 4 * rank * (round == 0 ? shape.rows() : shape.cols());
    }
  }
  return 0;
}

}  // namespace gradpress::codec
