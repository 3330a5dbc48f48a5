// What a codec's text says, and how many bytes it will send: pure arithmetic, shared by codecs and
// planner. What is true of a kind of codec, whatever its parameters, is in facts.h.
#pragma once

#include <gradpress/shape.h>
#include <gradpress/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradpress::codec {

enum class Kind : std::uint8_t {
  kNone,
  kFp16,
  kBf16,
  kSign,
  kSignum,
  kEfSign,
  kOneBit,
  kTopK,
  kChunkTopK,
  kRandomK,
  kDgc,
  kRedSync,
  kRedSyncQ,
  kQsgd,
  kTernGrad,
  kNatural,
  kInt8,
  kKashin,
  kPowerSgd,
  kAcpSgd,
};

/// How a sparsifier's payload writes indices ("index=").
enum class IndexCode : std::uint8_t {
  kPlain,  ///< a u32 each
  kRice,   ///< gaps in Rice code, its parameter derived from the density
};

/// How a sparsifier's payload writes values ("value="). What rounding loses stays in the residual.
enum class ValueCode : std::uint8_t {
  kFp32,
  kFp16,
  kBf16,
  kTwoBits,  ///< sign, and whether above the mean magnitude; a table of the four bins' means
};

/// RedSync's choice of a selection method by size, and the search's numbers. Sizes in elements.
struct RedSyncTuning {
  std::uint64_t exact_max = 131072;  ///< up to here: exact top-k ("exact=")
  std::uint64_t trimmed_max =
      4194304;              ///< up to here: trimmed top-k; above: threshold search ("trimmed=")
  double trim_start = 0.8;  ///< first trimming ratio ("trim=")
  double trim_step = 0.2;   ///< its decrement ("trim-step=")
  /// The search accepts more than k·band_low and fewer than k·band_high entries ("low=", "high=").
  double band_low = 0.5;
  double band_high = 1.5;
  unsigned cut = 0;      ///< 1: what the search accepts is cut to k by magnitude ("cut=")
  unsigned probes = 12;  ///< thresholds tried before exact selection takes over ("probes=")
  unsigned reuse = 5;    ///< steps a found ratio serves; 1 searches every step ("reuse=")

  friend bool operator==(const RedSyncTuning&, const RedSyncTuning&) = default;
};

/// A parsed codec text. Fields that the kind does not use keep their defaults.
struct Spec {
  Kind kind = Kind::kNone;
  double ratio = 1.0;            ///< sparsifiers: kept share of the elements
  std::uint32_t chunk = 0;       ///< chunktopk: elements of a chunk, else 0
  std::uint32_t chunk_kept = 0;  ///< chunktopk: kept elements of a whole chunk
  unsigned bits = 8;             ///< qsgd, kashin: 2, 4 or 8
  std::uint32_t block = 1024;    ///< int8, qsgd: elements per scale ("block=")
  double clip_sigmas =
      2.5;            ///< terngrad: clip beyond this many standard deviations, 0 = never ("clip=")
  unsigned rank = 0;  ///< low-rank codecs
  double least_rate = 0.0;  ///< powersgd: matrices that shrink by less travel dense ("rate=")
  double momentum = 0.9;    ///< signum: what stays of the mean gradient in each step
  /// randomk: values times the width of their stratum, and no residual ("unbiased=1")
  bool unbiased = false;
  double sample = 0.01;  ///< dgc: share of the elements sampled for the threshold ("sample=")
  IndexCode index = IndexCode::kPlain;  ///< topk, dgc, redsync
  ValueCode value = ValueCode::kFp32;   ///< topk, dgc, redsync, randomk
  RedSyncTuning redsync{};

  friend bool operator==(const Spec&, const Spec&) = default;
};

/// Parses "name", "name:value" and "name:value:key=number:…"; some keys take words ("value=fp16").
/// Errors: kInvalidArgument: unknown name (with the list), missing, malformed or out-of-range
/// parameter.
Result<Spec> parse_spec(std::string_view text);

/// The shortest text that parses to `spec`.
std::string to_text(const Spec& spec);

/// The number behind the name's colon, of "64/4096" the quotient; none where the kind takes none.
std::optional<double> value_of(const Spec& spec);

/// Entries a sparsifier keeps of `elements`: ⌈ratio · elements⌉, the product in IEEE double, at
/// least 1, at most all. By chunks: chunk_kept of every whole one, of a last one of m elements
/// ⌈chunk_kept · m / chunk⌉.
std::uint64_t kept_elements(const Spec& spec, std::uint64_t elements);

/// The fewest and the most entries that a sparsifier's payload has.
std::uint64_t least_kept(const Spec& spec, std::uint64_t elements);
std::uint64_t most_kept(const Spec& spec, std::uint64_t elements);

/// Whether a sparsifier's payload has another form than u32 indices and f32 values.
constexpr bool has_coded_entries(const Spec& spec) {
  return spec.index != IndexCode::kPlain || spec.value != ValueCode::kFp32;
}

/// Payload bytes for a tensor of `shape`: exact for fixed-size codecs, the most for the others. For
/// powersgd `round` 0 is P (rows) and 1 is Q (columns); for acpsgd the same numbers name the two
/// alternating steps.
std::uint64_t payload_bytes(const Spec& spec, const Shape& shape, unsigned round = 0);

/// The bytes that a tensor's payloads take in a step: of all rounds, the mean where kinds of steps
/// take turns. A codec saves where that is below 4 bytes an element.
std::uint64_t step_bytes(const Spec& spec, const Shape& shape);

/// The bytes that payloads of k entries use on average, where kept elements lie independently of
/// each other. Below payload_bytes for Rice-coded indices and for redsync's search.
double expected_bytes(const Spec& spec, const Shape& shape, unsigned round = 0);

/// min(rank, rows, cols); 0 for tensors a low-rank codec sends dense: vectors, and matrices that it
/// shrinks by less than `least_rate`.
std::uint64_t effective_rank(const Spec& spec, const Shape& shape);

}  // namespace gradpress::codec
