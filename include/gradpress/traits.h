// What a codec promises about its payloads, whatever the tensor.
#pragma once

#include <gradpress/data_type.h>

#include <cstdint>

namespace gradpress {

/// How the decoded contributions of W workers become the gradient.
enum class Combine : std::uint8_t {
  kMean,  ///< their mean: decode with weight 1/W
  /// The sign of their sum: decode with weight 1 and with one casting vote, finish takes the sign.
  kVote,
};

/// What a codec promises; property tests hold it to this.
struct Traits {
  bool reducible = false;  ///< element-wise sums of payloads decode to the sum of what they encode
  DataType payload_type = DataType::kBytes;  ///< kBytes unless reducible
  bool biased = true;  ///< the expectation of decode(encode(x)) differs from x
  bool needs_feedback =
      false;  ///< training does not converge without error feedback; on by default
  bool supports_feedback = true;  ///< false only where a residual has no meaning (a vote)
  bool shardable = true;          ///< one encode call can make several shards' payloads
  bool fixed_size = true;         ///< every payload has exactly payload_bound bytes
  Combine combine = Combine::kMean;
  unsigned rounds = 1;      ///< encode calls per step
  bool overwrites = false;  ///< DecodeArgs::overwrite costs no pass to clear the destination

  friend bool operator==(const Traits&, const Traits&) = default;
};

}  // namespace gradpress
