// An interval on a lane of a timeline, predicted or measured alike.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace gradpress::plan {

enum class Lane : std::uint8_t {
  kDevice,  ///< backward, and codec work on the device
  kHost,    ///< codec work on the host
  kIntra,   ///< the worker's link inside its machine
  kInter,   ///< the machine's network card
};
inline constexpr std::size_t kLanes = 4;
inline constexpr std::array<Lane, kLanes> kAllLanes = {Lane::kDevice, Lane::kHost, Lane::kIntra,
                                                       Lane::kInter};

constexpr std::string_view to_text(Lane lane) {
  constexpr std::array<std::string_view, kLanes> kNames = {"device", "host", "intra", "inter"};
  return kNames[static_cast<std::size_t>(lane)];
}

enum class SpanKind : std::uint8_t { kBackward, kEncode, kDecode, kComm };

struct Span {
  Lane lane = Lane::kDevice;
  SpanKind kind = SpanKind::kBackward;
  std::uint8_t action = 0;    ///< which action of the option; 0 for backward
  std::uint32_t message = 0;  ///< the bucket; for backward the tensor
  std::uint32_t tensor = 0;   ///< the tensor whose index orders it: a bucket's last member
  double runnable_us = 0.0;   ///< when it could have started, had its lane been free
  double start_us = 0.0;
  double end_us = 0.0;
};

}  // namespace gradpress::plan
