// What a message is made of, checked: codecs, whether they fit the option, and the text that all
// ranks must agree on.
#pragma once

#include <gradpress/codec.h>
#include <gradpress/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/topology.h"
#include "sync/message.h"
#include "sync/site.h"

namespace gradpress::sync {

struct Described {
  std::vector<std::unique_ptr<const Codec>> codecs = {};
  std::vector<MemberCodec> members = {};
  std::string text = {};
  std::string tensor = {};  ///< names the message in errors
  bool low_rank = false;    ///< payloads are whole matrices' factors, cut as one vector
  bool alternates = false;  ///< payload sizes differ between even and odd steps
  bool votes = false;
  bool momentum = false;             ///< of any member
  std::uint64_t summed_workers = 1;  ///< whose gradients the first encode's input is the sum of
  DataType payload_type = DataType::kBytes;
  /// Low rank: payload bytes by parity, then round, then member.
  std::vector<std::vector<std::vector<std::size_t>>> vector_bytes = {};
};

/// Errors: kInvalidArgument, as Message::make.
Result<Described> describe(const MessageSpec& spec, const comm::Topology& topology);

}  // namespace gradpress::sync
