#include "spec/facts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "spec/sizes.h"

namespace gradpress::codec {

namespace {

#define GRADPRESS_KEY(name, least, most, whole, field)                         \
  Key {                                                                        \
    name, least, most, whole, [](const Spec& s) { return double(s.field); },   \
        [](Spec& s, double v) { s.field = static_cast<decltype(s.field)>(v); } \
  }
#define GRADPRESS_WORDS(name, words, field)                                                \
  Key {                                                                                    \
    name, 0, words.size() - 1, true, [](const Spec& s) { return double(s.field); },        \
        [](Spec& s, double v) { s.field = static_cast<decltype(s.field)>(int(v)); }, words \
  }

constexpr double kMost = 4294967295.0;
constexpr std::array kBlockKeys = {GRADPRESS_KEY("block", 16, 1048576, true, block)};
constexpr std::array kTernGradKeys = {GRADPRESS_KEY("clip", 0, 1000, false, clip_sigmas)};
constexpr std::array<std::string_view, 2> kIndexWords = {"plain", "rice"};
constexpr std::array<std::string_view, 4> kValueWords = {"fp32", "fp16", "bf16", "2bit"};
constexpr Key kIndexKey = GRADPRESS_WORDS("index", kIndexWords, index);
constexpr Key kValueKey = GRADPRESS_WORDS("value", kValueWords, value);
constexpr std::array kTopKKeys = {kIndexKey, kValueKey};
constexpr std::array kRandomKKeys = {GRADPRESS_KEY("unbiased", 0, 1, true, unbiased), kValueKey};
constexpr std::array kDgcKeys = {GRADPRESS_KEY("sample", 0.0001, 1, false, sample), kIndexKey,
                                 kValueKey};
constexpr std::array kPowerSgdKeys = {GRADPRESS_KEY("rate", 0, 1000000, false, least_rate)};
constexpr std::array kRedSyncQKeys = {
    GRADPRESS_KEY("exact", 0, kMost, true, redsync.exact_max),
    GRADPRESS_KEY("trimmed", 0, kMost, true, redsync.trimmed_max),
    GRADPRESS_KEY("trim", 0, 1, false, redsync.trim_start),
    GRADPRESS_KEY("trim-step", 0.001, 1, false, redsync.trim_step),
    GRADPRESS_KEY("low", 0, 1, false, redsync.band_low),
    GRADPRESS_KEY("high", 1, 1000, false, redsync.band_high),
    GRADPRESS_KEY("cut", 0, 1, true, redsync.cut),
    GRADPRESS_KEY("probes", 1, 64, true, redsync.probes),
    GRADPRESS_KEY("reuse", 1, 1000000, true, redsync.reuse),
};
#undef GRADPRESS_WORDS
#undef GRADPRESS_KEY

/// The same with coded entries.
constexpr auto kRedSyncKeys = [] {
  std::array<Key, kRedSyncQKeys.size() + 2> keys{};
  std::ranges::copy(kRedSyncQKeys, keys.begin());
  keys[kRedSyncQKeys.size()] = kIndexKey;
  keys[kRedSyncQKeys.size() + 1] = kValueKey;
  return keys;
}();

/// Unbiased unless it clips.
void adjust_terngrad(const Spec& spec, Traits& traits) { traits.biased = spec.clip_sigmas != 0.0; }

/// RedSync's search, above trimmed_max elements, sends what its band allows.
std::uint64_t redsync_most(const Spec& spec, std::uint64_t elements, std::uint64_t kept) {
  if (elements <= spec.redsync.trimmed_max || spec.redsync.cut != 0) return kept;
  const double band = std::ceil(spec.redsync.band_high * static_cast<double>(kept)) - 1.0;
  return std::clamp(static_cast<std::uint64_t>(band), kept, elements);
}

/// How long Rice-coded gaps are depends on where the entries lie.
void adjust_selection(const Spec& spec, Traits& traits) {
  traits.fixed_size = traits.fixed_size && spec.index == IndexCode::kPlain;
}

/// Values of two bytes can be summed as such; codes of 2 bits cannot.
void adjust_randomk(const Spec& spec, Traits& traits) {
  constexpr std::array kTypes = {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16,
                                 DataType::kBytes};
  traits.payload_type = kTypes[static_cast<std::size_t>(spec.value)];
  traits.reducible = spec.value != ValueCode::kTwoBits;
  if (!spec.unbiased) return;
  // Scaled values have the gradient as their expectation; with a residual they would not converge.
  traits.biased = false;
  traits.needs_feedback = false;
  traits.supports_feedback = false;
}

constexpr std::array kTable = {
    Facts{.kind = Kind::kNone,
          .name = "none",
          .family = Family::kRaw,
          .usage = "none",
          .example = "none",
          .about = "no compression: the gradient's own bytes",
          .traits = {.reducible = true,
                     .payload_type = DataType::kFloat32,
                     .biased = false,
                     .supports_feedback = false},
          .bytes = raw_bytes},
    Facts{.kind = Kind::kFp16,
          .name = "fp16",
          .family = Family::kCast,
          .usage = "fp16",
          .example = "fp16",
          .about = "IEEE half precision, reducible; small values vanish below 2^-25",
          .traits = {.reducible = true, .payload_type = DataType::kFloat16},
          .bytes = cast_bytes},
    Facts{.kind = Kind::kBf16,
          .name = "bf16",
          .family = Family::kCast,
          .usage = "bf16",
          .example = "bf16",
          .about = "bfloat16, reducible: float's range with 8 significant bits",
          .traits = {.reducible = true, .payload_type = DataType::kBfloat16},
          .bytes = cast_bytes},
    Facts{.kind = Kind::kSign,
          .name = "sign",
          .family = Family::kSign,
          .usage = "sign",
          .example = "sign",
          .about = "signs and a majority vote, 1 bit an element",
          .draws = Draws::kShared,
          .traits = {.supports_feedback = false, .combine = Combine::kVote},
          .bytes = sign_bytes<0>},
    Facts{.kind = Kind::kSignum,
          .name = "signum",
          .family = Family::kSign,
          .value = Value::kMomentum,
          .usage = "signum:MOMENTUM",
          .example = "signum:0.9",
          .about = "signs of each worker's mean gradient over time, and a majority vote",
          .draws = Draws::kShared,
          .traits = {.supports_feedback = false, .combine = Combine::kVote},
          .bytes = sign_bytes<0>},
    Facts{.kind = Kind::kEfSign,
          .name = "efsign",
          .family = Family::kSign,
          .usage = "efsign",
          .example = "efsign",
          .about = "signs scaled by the mean magnitude, with error feedback",
          .traits = {.needs_feedback = true},
          .bytes = sign_bytes<1>},
    Facts{.kind = Kind::kOneBit,
          .name = "onebit",
          .family = Family::kSign,
          .usage = "onebit",
          .example = "onebit",
          .about = "signs with one mean per side, with error feedback",
          .traits = {.needs_feedback = true},
          .bytes = sign_bytes<2>},
    Facts{.kind = Kind::kTopK,
          .name = "topk",
          .family = Family::kSparse,
          .value = Value::kRatio,
          .keys = kTopKKeys,
          .usage = "topk:RATIO[:index=rice][:value=fp16|bf16|2bit]",
          .example = "topk:0.01",
          .about = "exactly the largest elements, with error feedback",
          .traits = {.needs_feedback = true},
          .bytes = entry_bytes,
          .adjust = adjust_selection},
    Facts{.kind = Kind::kChunkTopK,
          .name = "chunktopk",
          .family = Family::kSparse,
          .value = Value::kChunk,
          .keys = kTopKKeys,
          .usage = "chunktopk:KEPT/CHUNK[:index=rice][:value=fp16|bf16|2bit]",
          .example = "chunktopk:64/4096",
          .about = "exactly the largest elements of every chunk, with error feedback",
          .traits = {.needs_feedback = true},
          .bytes = entry_bytes,
          .adjust = adjust_selection},
    Facts{.kind = Kind::kRandomK,
          .name = "randomk",
          .family = Family::kSparse,
          .value = Value::kRatio,
          .keys = kRandomKKeys,
          .usage = "randomk:RATIO[:unbiased=1][:value=fp16|bf16|2bit]",
          .example = "randomk:0.01",
          .about = "elements drawn alike on all workers: values alone travel, all-reduce works",
          .draws = Draws::kShared,
          .traits = {.reducible = true, .payload_type = DataType::kFloat32, .needs_feedback = true},
          .bytes = randomk_bytes,
          .adjust = adjust_randomk},
    Facts{.kind = Kind::kDgc,
          .name = "dgc",
          .family = Family::kSparse,
          .value = Value::kRatio,
          .keys = kDgcKeys,
          .usage = "dgc:RATIO[:index=rice][:value=fp16|bf16|2bit]",
          .example = "dgc:0.001",
          .about = "the largest elements by a sampled threshold",
          .traits = {.needs_feedback = true, .fixed_size = false},
          .bytes = entry_bytes},
    Facts{.kind = Kind::kRedSync,
          .name = "redsync",
          .family = Family::kSparse,
          .value = Value::kRatio,
          .keys = kRedSyncKeys,
          .usage = "redsync:RATIO[:index=rice][:value=fp16|bf16|2bit]",
          .example = "redsync:0.001",
          .about = "the largest elements, selected by tensor size, thresholds reused",
          .traits = {.needs_feedback = true, .fixed_size = false},
          .bytes = entry_bytes,
          .most = redsync_most},
    Facts{.kind = Kind::kRedSyncQ,
          .name = "redsync-q",
          .family = Family::kSparse,
          .value = Value::kRatio,
          .keys = kRedSyncQKeys,
          .usage = "redsync-q:RATIO",
          .example = "redsync-q:0.001",
          .about = "the largest elements of alternating sign, sent as indices and one mean",
          .for_output = "redsync",
          .traits = {.needs_feedback = true, .fixed_size = false},
          .bytes = redsync_q_bytes,
          .most = redsync_most},
    Facts{.kind = Kind::kQsgd,
          .name = "qsgd",
          .family = Family::kQuantizer,
          .value = Value::kBits,
          .keys = kBlockKeys,
          .usage = "qsgd:BITS[:block=N]",
          .example = "qsgd:8",
          .about = "random rounding to levels of each block's norm",
          .draws = Draws::kAny,
          .traits = {.biased = false},
          .bytes = qsgd_bytes},
    Facts{.kind = Kind::kTernGrad,
          .name = "terngrad",
          .family = Family::kQuantizer,
          .keys = kTernGradKeys,
          .usage = "terngrad[:clip=SIGMAS]",
          .example = "terngrad",
          .about = "minus, zero or plus one scale, 2 bits an element",
          .draws = Draws::kAny,
          .bytes = terngrad_bytes,
          .adjust = adjust_terngrad},
    Facts{.kind = Kind::kNatural,
          .name = "natural",
          .family = Family::kQuantizer,
          .usage = "natural",
          .example = "natural",
          .about = "random rounding to powers of two, 8 bits an element",
          .draws = Draws::kAny,
          .traits = {.biased = false},
          .bytes = natural_bytes},
    Facts{.kind = Kind::kInt8,
          .name = "int8",
          .family = Family::kQuantizer,
          .keys = kBlockKeys,
          .usage = "int8[:block=N]",
          .example = "int8",
          .about = "8 bits against each block's largest, with error feedback",
          .traits = {.needs_feedback = true},
          .bytes = int8_bytes},
    Facts{.kind = Kind::kKashin,
          .name = "kashin",
          .family = Family::kQuantizer,
          .value = Value::kBits,
          .usage = "kashin:BITS",
          .example = "kashin:4",
          .about = "random rounding after a random rotation: blocks of equal coefficients",
          .draws = Draws::kAny,
          .traits = {.biased = false},
          .bytes = kashin_bytes},
    Facts{.kind = Kind::kPowerSgd,
          .name = "powersgd",
          .family = Family::kLowRank,
          .value = Value::kRank,
          .keys = kPowerSgdKeys,
          .usage = "powersgd:RANK[:rate=LEAST]",
          .example = "powersgd:4",
          .about = "two thin factors a step, by warm power iteration",
          .draws = Draws::kShared,
          .traits = {.reducible = true,
                     .payload_type = DataType::kFloat32,
                     .needs_feedback = true,
                     .shardable = false,
                     .rounds = 2,
                     .overwrites = true},
          .bytes = powersgd_bytes},
    Facts{.kind = Kind::kAcpSgd,
          .name = "acpsgd",
          .family = Family::kLowRank,
          .value = Value::kRank,
          .usage = "acpsgd:RANK",
          .example = "acpsgd:4",
          .about = "one thin factor a step, left and right in turn",
          .draws = Draws::kShared,
          .cycle = 2,
          .traits = {.reducible = true,
                     .payload_type = DataType::kFloat32,
                     .needs_feedback = true,
                     .shardable = false,
                     .fixed_size = false,
                     .overwrites = true},
          .bytes = acpsgd_bytes},
};

/// A kind's number is its row's.
constexpr bool rows_stand_at_their_kinds() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].kind) != i) return false;
  }
  return true;
}
static_assert(rows_stand_at_their_kinds(), "rows are in the order of Kind");

}  // namespace

std::string_view to_text(Family family) {
  constexpr std::array<std::string_view, 6> kNames = {"raw",       "cast",   "sign",
                                                      "quantizer", "sparse", "low-rank"};
  return kNames[static_cast<std::size_t>(family)];
}

std::string_view to_text(Value value) {
  constexpr std::array<std::string_view, 6> kNames = {"",     "ratio", "bits",
                                                      "rank", "chunk", "momentum"};
  return kNames[static_cast<std::size_t>(value)];
}

std::string_view to_text(Draws draws) {
  constexpr std::array<std::string_view, 3> kNames = {"none", "any", "shared"};
  return kNames[static_cast<std::size_t>(draws)];
}

std::span<const Facts> all_facts() { return kTable; }

const Facts& facts_of(Kind kind) { return kTable[static_cast<std::size_t>(kind)]; }

const Facts* find_facts(std::string_view name) {
  const auto* const found = std::ranges::find(kTable, name, &Facts::name);
  return found == kTable.end() ? nullptr : found;
}

const Facts* facts_of_text(std::string_view text) {
  return find_facts(text.substr(0, text.find(':')));
}

Traits traits_of(const Spec& spec) {
  const Facts& facts = facts_of(spec.kind);
  Traits traits = facts.traits;
  if (facts.adjust != nullptr) facts.adjust(spec, traits);
  return traits;
}

std::uint64_t payload_bytes(const Spec& spec, const Shape& shape, unsigned round) {
  return facts_of(spec.kind).bytes(spec, shape, round);
}

}  // namespace gradpress::codec
