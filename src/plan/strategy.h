// A strategy: an option and a codec for every tensor, and which tensors share a message.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "plan/cluster.h"
#include "plan/option.h"
#include "plan/trace.h"
#include "spec/spec.h"

namespace gradpress::plan {

/// What is asked: a model on a cluster with some codecs. A view: the parts outlive it.
struct Setting {
  const Trace& trace;
  const Cluster& cluster;
  std::span<const codec::Spec> codecs;
};

struct Choice {
  Option option;
  std::uint8_t codec = 0;  ///< index into the setting's codecs; without meaning for raw options

  friend bool operator==(const Choice&, const Choice&) = default;
};

/// Which tensors travel together. Numbers are those of the messages, 0 to count - 1.
struct Buckets {
  std::vector<std::uint32_t> of_tensor;
  std::uint32_t count = 0;

  /// Every tensor alone: `--fusion none`.
  static Buckets singles(std::size_t tensors) {
    Buckets buckets{.of_tensor = std::vector<std::uint32_t>(tensors),
                    .count = static_cast<std::uint32_t>(tensors)};
    std::iota(buckets.of_tensor.begin(), buckets.of_tensor.end(), 0U);
    return buckets;
  }
  friend bool operator==(const Buckets&, const Buckets&) = default;
};

/// Members of one bucket share one choice.
struct Strategy {
  std::vector<Choice> choices;  ///< per tensor
  Buckets buckets;
  /// Of acpsgd's second step, where they differ; without tensors: the same.
  Buckets buckets_q{};

  const Buckets& of_round(unsigned round) const {
    return round == 1 && buckets_q.count != 0 ? buckets_q : buckets;
  }
};

}  // namespace gradpress::plan
