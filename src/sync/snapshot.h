// Bytes of a checkpoint, written and read in the same order; little-endian like the payloads.
#pragma once

#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradpress::sync {

class ByteWriter {
 public:
  template <class T>
  void put(const T& value) {
    append(std::as_bytes(std::span(&value, 1)));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    put(static_cast<std::uint64_t>(bytes.size()));
    append(bytes);
  }
  void put_floats(std::span<const float> values) { put_bytes(std::as_bytes(values)); }
  void put_text(std::string_view text) { put_bytes(std::as_bytes(std::span(text))); }

  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(std::span<const std::byte> bytes);
  std::vector<std::byte> bytes_;
};

/// Never reads beyond its bytes: what is missing reads as nothing, and status() then says so.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  T get() {
    T value{};
    if (const auto from = next(sizeof value); !from.empty()) {
      std::memcpy(&value, from.data(), sizeof value);
    }
    return value;
  }
  std::span<const std::byte> bytes() {
    const auto size = get<std::uint64_t>();
    return next(size);
  }
  std::vector<float> floats() {
    const auto from = bytes();
    std::vector<float> values(from.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), from.data(), values.size() * sizeof(float));
    return values;
  }
  std::string text() {
    const auto from = bytes();
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }

  bool at_end() const { return rest_.empty(); }
  /// kCorruptPayload once something was missing.
  const Status& status() const { return status_; }

 private:
  std::span<const std::byte> next(std::uint64_t size);
  std::span<const std::byte> rest_;
  Status status_;
};

}  // namespace gradpress::sync
