// Codecs that treat each element by itself, up to a scale: none, fp16, bf16, int8, qsgd, terngrad,
// natural.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/model.h"

namespace gradpress::test {

namespace {

using codec::Kind;

/// Below this a block counts as zero.
constexpr double kZeroBlock = 0x1p-100;
/// Relative error granted to a scale, a norm or a deviation summed in single precision.
constexpr double kSummed = 1e-5;

std::string wrong_length(const Sighting& seen, std::uint64_t wanted) {
  return "payload of " + std::to_string(seen.payload.size()) + " B, wanted " +
         std::to_string(wanted);
}

std::string wrong_at(std::size_t i, double x, double low, double high, double got) {
  return "element " + std::to_string(i) + ": x = " + std::to_string(x) + " may send " +
         std::to_string(low) + " to " + std::to_string(high) + ", sent " + std::to_string(got);
}

double dense_value(Kind kind, double x) {
  if (kind == Kind::kFp16) return half_value(half_bits(x));
  if (kind == Kind::kBf16) return bfloat_value(bfloat_bits(x));
  return x;
}

/// The scale of one block of `x`: largest magnitude / 127, or L2 norm.
double block_scale(Kind kind, std::span<const double> x) {
  double largest = 0.0;
  double squares = 0.0;
  for (const double v : x) {
    largest = std::max(largest, std::fabs(v));
    squares += v * v;
  }
  const double size = kind == Kind::kInt8 ? largest : std::sqrt(squares);
  if (size < kZeroBlock) return 0.0;
  return kind == Kind::kInt8 ? largest / 127.0 : size;
}

double largest_of(std::span<const double> values) {
  double largest = 0.0;
  for (const double v : values) largest = std::max(largest, std::fabs(v));
  return largest;
}

int natural_code(double magnitude, std::uint32_t word) {
  const auto value = static_cast<float>(magnitude);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  bits += word & 0x7FFFFFU;
  return std::clamp(static_cast<int>(bits >> 23) - 17, 0, 127);
}

}  // namespace

std::string judge_dense(const codec::Spec& spec, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  const bool narrow = spec.kind == Kind::kFp16 || spec.kind == Kind::kBf16;
  if (seen.payload.size() != n * (narrow ? 2 : 4)) return wrong_length(seen, n * (narrow ? 2 : 4));
  const auto sent = read_payload(spec, seen.payload, n, seen.words);
  for (std::size_t i = 0; i < n; ++i) {
    const double low = dense_value(spec.kind, seen.x[i] - seen.noise[i]);
    const double high = dense_value(spec.kind, seen.x[i] + seen.noise[i]);
    if (!(sent[i] >= low && sent[i] <= high)) return wrong_at(i, seen.x[i], low, high, sent[i]);
  }
  return {};
}

std::string judge_codes(const codec::Spec& spec, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  const std::uint64_t bytes = codec::payload_bytes(spec, Shape::flat(n));
  if (seen.payload.size() != bytes) return wrong_length(seen, bytes);
  const bool stochastic = spec.kind == Kind::kQsgd;
  const double levels = stochastic ? (1 << (spec.bits - 1)) - 1 : 127;
  for (std::size_t begin = 0; begin < n; begin += spec.block) {
    const std::size_t count = std::min<std::size_t>(spec.block, n - begin);
    const double scale = block_scale(spec.kind, seen.x.subspan(begin, count));
    const double sent = read_f32(seen.payload, 4 * (begin / spec.block));
    const double grace = kSummed * scale + 4 * largest_of(seen.noise.subspan(begin, count));
    if (!(std::fabs(sent - scale) <= grace)) {
      return wrong_at(begin, scale, scale - grace, scale + grace, sent);
    }
    for (std::size_t i = begin; i < begin + count; ++i) {
      const int code = read_code(spec, seen.payload, n, i);
      const double unit = sent == 0.0 ? 0.0 : (stochastic ? levels / sent : 1.0 / sent);
      const double t = std::fabs(seen.x[i]) * unit;
      const double doubt = seen.noise[i] * unit + 0x1p-21 * (t + 1.0);
      const double u = stochastic ? seen.words.uniform(i) : 0.0;
      const auto code_of = [&](double v) {
        return std::min(levels, stochastic ? std::floor(v + u) : std::nearbyint(v));
      };
      const double low = std::max(0.0, code_of(std::max(0.0, t - doubt)));
      const double high = sent == 0.0 ? 0.0 : code_of(t + doubt);
      const double magnitude = std::abs(code);
      const bool sign_is_right =
          code == 0 || std::fabs(seen.x[i]) <= seen.noise[i] || (code < 0) == (seen.x[i] < 0.0);
      if (magnitude < low || magnitude > high || !sign_is_right) {
        return wrong_at(i, seen.x[i], low, high, code);
      }
    }
  }
  return {};
}

std::string judge_terngrad(const codec::Spec& spec, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  if (seen.payload.size() != (n + 3) / 4 + 4) return wrong_length(seen, (n + 3) / 4 + 4);
  double sum = 0.0;
  for (const double v : seen.x) sum += v;
  double squares = 0.0;
  for (const double v : seen.x) squares += (v - sum / double(n)) * (v - sum / double(n));
  const double sigma = n == 0 ? 0.0 : std::sqrt(squares / double(n));
  const double largest = largest_of(seen.x);
  const double noise = 4 * largest_of(seen.noise);
  // Rounding may take a deviation of nothing for a tiny one, or the other way about.
  const bool may_clip = spec.clip_sigmas > 0.0 && sigma + noise + 1e-6 * largest > 0.0;
  const bool must_clip = spec.clip_sigmas > 0.0 && sigma > noise + 1e-3 * largest;
  const double clip = spec.clip_sigmas * sigma;
  const double scale = read_f32(seen.payload, 0);
  const double wanted = must_clip ? std::min(largest, clip) : largest;
  const double grace = 3 * kSummed * wanted + noise;
  if (std::fabs(scale - wanted) > grace &&
      !(may_clip && !must_clip && scale <= largest + grace && scale >= 0.0)) {
    return wrong_at(0, wanted, wanted - grace, wanted + grace, scale);
  }
  const auto sent = read_payload(spec, seen.payload, n, seen.words);
  for (std::size_t i = 0; i < n; ++i) {
    const double a = std::min(std::fabs(seen.x[i]), must_clip ? clip : scale);
    const double doubt =
        seen.noise[i] + 3 * kSummed * (must_clip && a == clip ? clip : 0.0) + 0x1p-22 * a;
    const double drawn = seen.words.uniform(i) * scale;
    const bool must_keep = drawn < a - doubt;
    const bool may_keep = drawn < a + doubt;
    const bool kept = sent[i] != 0.0;
    const bool sign_is_right = !kept || std::fabs(seen.x[i]) <= seen.noise[i] ||
                               std::signbit(sent[i]) == std::signbit(seen.x[i]);
    if ((kept && !may_keep) || (!kept && must_keep && scale > 0.0) || !sign_is_right) {
      return wrong_at(i, seen.x[i], must_keep ? scale : 0.0, may_keep ? scale : 0.0, sent[i]);
    }
  }
  return {};
}

std::string judge_natural(const codec::Spec& /*spec*/, const Sighting& seen) {
  const std::size_t n = seen.x.size();
  if (seen.payload.size() != n) return wrong_length(seen, n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto byte = std::to_integer<int>(seen.payload[i]);
    const double a = std::fabs(seen.x[i]);
    const int low = natural_code(std::max(0.0, a - seen.noise[i]), seen.words[i]);
    const int high = natural_code(a + seen.noise[i], seen.words[i]);
    const bool sign_is_right = a <= seen.noise[i] || (byte >= 128) == std::signbit(seen.x[i]);
    if ((byte & 127) < low || (byte & 127) > high || !sign_is_right) {
      return wrong_at(i, seen.x[i], low, high, byte);
    }
  }
  return {};
}

}  // namespace gradpress::test
