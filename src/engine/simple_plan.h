// Codecs by name: the messages of a step when the user names codecs and nothing was measured.
#pragma once

#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/topology.h"
#include "engine/program.h"
#include "spec/spec.h"

namespace gradpress::engine {

struct SimplePlanOptions {
  /// Off: every tensor is its own message.
  bool fusion = true;
  /// Off: payloads that could be summed on their way are gathered and summed at the end. Not for
  /// low-rank codecs, which need the sum.
  bool sum_payloads = true;
  /// Tensors with fewer elements travel raw, beside each other.
  std::uint64_t least_elements = 1024;
  /// A message closes when its tensors have this many raw bytes: so that messages of any codec are
  /// as many, and begin as early, as those of no codec. (ACP-SGD's scaled buffers.)
  std::uint64_t bucket_bytes = 25'000'000;
  /// The same for messages in which everything travels raw.
  std::uint64_t raw_bucket_bytes = 25'000'000;
  std::uint64_t seed = 0;
};

/// Tensors in the order of backward; every rank must ask the same.
///   sums of payloads (fp16, bf16, randomk, low rank)  one all-reduce; tensors that travel raw join
///                                                     the messages where payloads are float32
///   signs and quantisers                              shards are exchanged, summed, encoded again
///   sparsifiers                                       all-gather
/// A tensor of which the codec saves no bytes (saves_bytes) travels raw.
/// Requires: a codec for every tensor. Messages hold tensors of one codec.
/// Errors: kInvalidArgument on an unknown codec.
Result<std::vector<sync::MessageSpec>> simple_plan(std::span<const TensorSpec> tensors,
                                                   std::span<const std::string> codecs,
                                                   const comm::Topology& topology,
                                                   const SimplePlanOptions& options);
/// Whether a rank sends fewer bytes by this codec than raw, on the path that simple_plan() takes. A
/// gathered payload travels once for every other worker; of sums and exchanges a rank sends less
/// than twice the payload, however many workers there are. So a sparsifier stops paying at some
/// number of workers: RedSync's choice between sparse and dense, by bytes.
bool saves_bytes(const codec::Spec& spec, const Shape& shape, std::uint64_t workers,
                 bool sum_payloads);

/// The same codec for all.
Result<std::vector<sync::MessageSpec>> simple_plan(std::span<const TensorSpec> tensors,
                                                   std::string_view codec,
                                                   const comm::Topology& topology,
                                                   const SimplePlanOptions& options);

}  // namespace gradpress::engine
