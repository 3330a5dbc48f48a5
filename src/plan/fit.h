// Why not: whether an option fits a codec, a tensor and a topology. Planner and executor both ask.
#pragma once

#include <gradpress/shape.h>

#include <cstdint>
#include <string>

#include "plan/option.h"
#include "spec/spec.h"

namespace gradpress::plan {

/// machines × workers on each. Both at least 1 in anything that came out of a reader.
struct Topology {
  std::uint32_t machines = 1;
  std::uint32_t workers = 1;  ///< per machine

  std::uint64_t world() const { return std::uint64_t{machines} * workers; }
  friend bool operator==(const Topology&, const Topology&) = default;
};

/// What a codec's kind means for the tree.
struct CodecFit {
  std::string name;
  bool encodes = true;        ///< false for none
  bool reducible = false;     ///< collectives may sum its payloads
  bool whole_tensor = false;  ///< low rank: encodes a whole matrix, needs the sum of the payloads
  unsigned rounds = 1;
  bool votes = false;  ///< a majority of workers: sums of some of them must not be encoded
};
CodecFit codec_fit(const codec::Spec& spec);

/// The reason why a tensor of `shape` cannot take `option` with this codec, in one sentence for the
/// user; empty when it can. Raw options fit every codec.
std::string why_not(const Option& option, const CodecFit& codec, const Shape& shape,
                    const Topology& topology);

}  // namespace gradpress::plan
