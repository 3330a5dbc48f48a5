#include "codec/sparse_wire.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/sparse.h"
#include "codec/wire.h"
#include "kernels/cast.h"
#include "kernels/sparse.h"
#include "spec/sizes.h"

namespace gradpress::codec {

namespace {

constexpr std::size_t kTableBytes = 4 * sizeof(float);
constexpr std::size_t kCodesPerByte = 4;

/// Elements that reach a codec's payload are below this, so the cast kernels refuse none.
constexpr float kNoLimit = std::numeric_limits<float>::infinity();

/// Bit 1 is the sign, bit 0 whether the magnitude is above the mean magnitude.
unsigned two_bit_code(float value, float mean) {
  return (std::signbit(value) ? 2U : 0U) | (std::fabs(value) > mean ? 1U : 0U);
}

/// Sums of every fourth value, so that no addition waits for the one before.
constexpr std::size_t kLanes = 4;
static_assert(kLanes == kCodesPerByte, "the codes of one value per lane fill a byte");

struct Bins {
  std::array<std::array<double, 4>, kLanes> sums{};
  std::array<std::array<std::uint64_t, 4>, kLanes> counts{};

  unsigned add(std::size_t lane, float value, float mean) {
    const unsigned code = two_bit_code(value, mean);
    sums[lane][code] += static_cast<double>(value);
    ++counts[lane][code];
    return code << (2 * lane);
  }
  float mean_of(std::size_t code) const {
    const double sum = sums[0][code] + sums[1][code] + (sums[2][code] + sums[3][code]);
    const std::uint64_t count =
        counts[0][code] + counts[1][code] + counts[2][code] + counts[3][code];
    return count == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(count));
  }
};

float mean_magnitude(std::span<const float> values) {
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += static_cast<double>(std::fabs(values[i + lane]));
    }
  }
  for (; i < values.size(); ++i) sums[i % kLanes] += static_cast<double>(std::fabs(values[i]));
  return static_cast<float>((sums[0] + sums[1] + (sums[2] + sums[3])) /
                            static_cast<double>(values.size()));
}

void write_two_bits(std::span<const float> values, std::span<std::byte> out) {
  const float mean = mean_magnitude(values);
  Bins bins;
  std::byte* to = out.data() + kTableBytes;
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    unsigned byte = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      byte |= bins.add(lane, values[i + lane], mean);
    *to++ = static_cast<std::byte>(byte);
  }
  if (i < values.size()) {
    unsigned byte = 0;
    for (; i < values.size(); ++i) byte |= bins.add(i % kLanes, values[i], mean);
    *to = static_cast<std::byte>(byte);
  }
  for (std::size_t code = 0; code < 4; ++code) {
    store_word(out, code * sizeof(float), bins.mean_of(code));
  }
}

}  // namespace

void write_values(ValueCode code, std::span<const float> values, std::span<std::byte> out) {
  if (values.empty()) return;
  const kernels::FeedbackPass pass{.g = values, .residual = {}, .limit = kNoLimit};
  switch (code) {
    case ValueCode::kFp32:
      std::memcpy(out.data(), values.data(), values.size_bytes());
      break;
    case ValueCode::kFp16:
      (void)kernels::encode_fp16(pass, out);
      break;
    case ValueCode::kBf16:
      (void)kernels::encode_bf16(pass, out);
      break;
    case ValueCode::kTwoBits:
      write_two_bits(values, out);
      break;
  }
}

ValueReader::ValueReader(ValueCode code, std::span<const std::byte> bytes)
    : code_(code), bytes_(bytes) {
  if (code != ValueCode::kTwoBits || bytes.empty()) return;
  for (std::size_t i = 0; i < means_.size(); ++i) {
    means_[i] = load_word<float>(bytes, i * sizeof(float));
  }
  bytes_ = bytes.subspan(kTableBytes);
}

bool ValueReader::read(std::span<float> out) {
  if (code_ == ValueCode::kTwoBits) {
    for (float& value : out) {
      const auto byte = std::to_integer<unsigned>(bytes_[next_code_ / kCodesPerByte]);
      value = means_[byte >> (2 * (next_code_ % kCodesPerByte)) & 3U];
      ++next_code_;
    }
    return std::ranges::all_of(means_, [](float mean) { return std::isfinite(mean); });
  }
  const auto taken = bytes_.first(value_bytes(code_, out.size()));
  bytes_ = bytes_.subspan(taken.size());
  if (code_ == ValueCode::kFp32) {
    if (!out.empty()) std::memcpy(out.data(), taken.data(), taken.size());
    return kernels::values_finite(taken);
  }
  std::ranges::fill(out, 0.0F);
  return code_ == ValueCode::kFp16 ? kernels::add_fp16(taken, 1.0F, out)
                                   : kernels::add_bf16(taken, 1.0F, out);
}

std::size_t SparseWire::write(std::span<const std::uint32_t> indices, std::span<const float> values,
                              std::uint64_t elements, std::span<std::byte> out) const {
  const std::size_t count = indices.size();
  if (count == 0) return 0;
  store_word(out, 0, static_cast<std::uint32_t>(count));
  std::size_t used = sizeof(std::uint32_t);
  const std::size_t value_part = value_bytes(spec_.value, count);
  write_values(spec_.value, values, out.subspan(used, value_part));
  used += value_part;
  if (spec_.index == IndexCode::kPlain) {
    std::memcpy(out.data() + used, indices.data(), indices.size_bytes());
    return used + indices.size_bytes();
  }
  const unsigned bits = rice_bits(spec_, elements);
  const std::size_t low = kernels::rice_low_bytes(count, bits);
  const std::size_t high = kernels::rice_high_bound(count, elements, bits);
  return used + low +
         kernels::rice_write(indices, bits, out.subspan(used, low), out.subspan(used + low, high));
}

Result<SparseWire::Parts> SparseWire::parts(const std::string& codec,
                                            std::span<const std::byte> payload,
                                            std::uint64_t elements) const {
  const std::uint64_t least = least_kept(spec_, elements);
  const std::uint64_t most = most_kept(spec_, elements);
  if (payload.empty() && least == 0) return Parts{};
  const std::uint64_t bound = payload_bytes(spec_, Shape::flat(elements));
  const auto wrong = [&] {
    return tl::unexpected(bad_length(codec, elements, bound, payload.size()));
  };
  if (payload.size() < sizeof(std::uint32_t) || payload.size() > bound) return wrong();
  const std::uint64_t count = load_word<std::uint32_t>(payload, 0);
  if (count == 0 || count < least || count > most) {
    return fail(Code::kCorruptPayload, codec, ": ", elements, " elements have ", least, " to ",
                most, " entries, got ", count);
  }
  Parts found{.count = static_cast<std::size_t>(count)};
  const std::uint64_t value_part = value_bytes(spec_.value, count);
  const bool plain = spec_.index == IndexCode::kPlain;
  if (!plain) found.bits = rice_bits(spec_, elements);
  const std::uint64_t low_part =
      plain ? sizeof(std::uint32_t) * count : kernels::rice_low_bytes(count, found.bits);
  const auto rest = payload.subspan(sizeof(std::uint32_t));
  if (rest.size() < value_part + low_part) return wrong();
  found.values = rest.first(value_part);
  found.low = rest.subspan(value_part, low_part);
  found.high = rest.subspan(value_part + low_part);
  const std::uint64_t most_high = plain ? 0 : kernels::rice_high_bound(count, elements, found.bits);
  if (found.high.size() > most_high) return wrong();
  return found;
}

template <class Visit>
Status SparseWire::for_blocks(const std::string& codec, std::span<const std::byte> payload,
                              std::span<const float> target, Visit visit) const {
  const auto found = parts(codec, payload, target.size());
  if (!found) return found.error();
  const bool plain = spec_.index == IndexCode::kPlain;
  kernels::RiceReader rice(plain ? std::span<const std::byte>() : found->low, found->high,
                           found->bits);
  ValueReader reader(spec_.value, found->values);
  std::array<std::uint64_t, kBlock> index_room;
  std::array<float, kBlock> value_room;
  for (std::size_t begin = 0; begin < found->count; begin += kBlock) {
    const std::size_t size = std::min(kBlock, found->count - begin);
    const std::span<std::uint64_t> indices = std::span(index_room).first(size);
    const std::span<float> values = std::span(value_room).first(size);
    bool valid = true;
    if (plain) {
      for (std::size_t i = 0; i < size; ++i) {
        const std::size_t at = (begin + i) * sizeof(std::uint32_t);
        indices[i] = load_word<std::uint32_t>(found->low, at);
        valid = valid &&
                (begin + i == 0 ||
                 load_word<std::uint32_t>(found->low, at - sizeof(std::uint32_t)) < indices[i]);
      }
    } else {
      valid = rice.read(indices);
    }
    // They ascend: what holds for the last holds for all.
    if (!valid || indices.back() >= target.size()) return bad_indices(codec, target.size());
    for (const std::uint64_t index : indices) kernels::prefetch(target.data() + index);
    if (!reader.read(values)) {
      return Status::error(Code::kCorruptPayload, codec, ": a value is not finite");
    }
    visit(indices, values);
  }
  if (!plain && found->count > 0 && !rice.at_end()) return bad_indices(codec, target.size());
  return {};
}

void SparseWire::settle(std::span<const std::uint32_t> indices, std::span<const std::byte> payload,
                        std::span<float> residual) const {
  if (spec_.value == ValueCode::kFp32) {
    return kernels::scatter_zero(std::as_bytes(indices), residual);
  }
  constexpr std::size_t kHead = sizeof(std::uint32_t);
  if (indices.empty()) return;
  ValueReader reader(spec_.value, payload.subspan(kHead, value_bytes(spec_.value, indices.size())));
  std::array<float, kBlock> room;
  for (std::size_t begin = 0; begin < indices.size(); begin += kBlock) {
    const auto block = indices.subspan(begin, std::min(kBlock, indices.size() - begin));
    for (const std::uint32_t index : block) kernels::prefetch(residual.data() + index);
    const std::span<float> values = std::span(room).first(block.size());
    (void)reader.read(values);
    for (std::size_t i = 0; i < block.size(); ++i) residual[block[i]] -= values[i];
  }
}

Status SparseWire::add(const std::string& codec, std::span<const std::byte> payload, float weight,
                       std::span<float> dst) const {
  return for_blocks(codec, payload, dst,
                    [&](std::span<const std::uint64_t> indices, std::span<const float> values) {
                      for (std::size_t i = 0; i < indices.size(); ++i) {
                        dst[indices[i]] += values[i] * weight;
                      }
                    });
}

double SparseWire::clear(std::span<const std::byte> payload, std::span<float> values) const {
  double dropped = 0.0;
  // A payload of our own has no errors.
  (void)for_blocks("", payload, values,
                   [&](std::span<const std::uint64_t> indices, std::span<const float> /*sent*/) {
                     for (const std::uint64_t index : indices) {
                       dropped += static_cast<double>(std::fabs(values[index]));
                       values[index] = 0.0F;
                     }
                   });
  return dropped;
}

}  // namespace gradpress::codec
