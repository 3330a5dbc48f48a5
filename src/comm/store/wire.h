// What store client and server say to each other: frames of a length and a body, numbers little
// endian.
//
// A connection opens with kGreeting from both sides. Then the client asks and the server answers,
// one at a time:
//   question  u8 operation, u64 number, text key, text value, text other
//   answer    u8 outcome, u64 number, text value
// Texts are a u32 length and the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace gradpress::comm::store {

inline constexpr std::string_view kGreeting = "gradpress-store1";

inline constexpr std::size_t kMostKey = 512;
inline constexpr std::size_t kMostValue = std::size_t{1} << 20;
inline constexpr std::size_t kMostQuestion = 2 * kMostValue + 2 * kMostKey;
inline constexpr std::size_t kMostAnswer = std::size_t{64} << 20;
inline constexpr std::size_t kLengthBytes = 4;

enum class Operation : std::uint8_t {
  kSet = 1,      ///< key := value; an empty value removes the key
  kGet = 2,      ///< waits `number` ms for the key
  kAdd = 3,      ///< key, a decimal number, += number; answers the sum
  kCompare = 4,  ///< key := value if it is `other` (empty: if there is no such key); answers what
                 ///< it is then
  kList = 5,     ///< all whose key begins with `key`: text key, text value, …
  kWill = 6,     ///< key := value when the connection ends; an empty key takes it back
};

enum class Outcome : std::uint8_t { kOk = 0, kAbsent = 1, kRefused = 2 };

/// Appends to a body.
class Writer {
 public:
  Writer& u8(std::uint8_t value) {
    bytes_.push_back(static_cast<char>(value));
    return *this;
  }
  Writer& u32(std::uint32_t value) { return number(value, 4); }
  Writer& u64(std::uint64_t value) { return number(value, 8); }
  Writer& text(std::string_view value) {
    u32(static_cast<std::uint32_t>(value.size()));
    bytes_.append(value);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }
  /// The body with its length in front.
  std::string framed() const {
    Writer frame;
    frame.text(bytes_);
    return std::move(frame.bytes_);
  }

 private:
  Writer& number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) u8(static_cast<std::uint8_t>(value >> (8 * i)));
    return *this;
  }

  std::string bytes_;
};

/// Reads a body of any origin: what is not there reads as zero or empty, and ok() tells.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(number(1)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  std::string_view text() { return take(u32()); }
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  std::uint64_t number(std::size_t count) {
    std::uint64_t value = 0;
    const std::string_view taken = take(count);
    for (std::size_t i = 0; i < taken.size(); ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    }
    return value;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace gradpress::comm::store
