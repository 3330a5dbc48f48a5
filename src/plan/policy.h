// Which codecs a tensor may take: the accuracy policy a user sets.
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/trace.h"
#include "spec/spec.h"

namespace gradpress::plan {

struct Policy {
  bool exempt_vectors = false;           ///< tensors of one dimension stay raw
  std::uint64_t exempt_below_elems = 0;  ///< smaller tensors stay raw
  /// The first rule whose pattern (with * and ?) matches a tensor's name decides; an empty list of
  /// codecs keeps it raw. Tensors that no rule matches may take every codec.
  struct Rule {
    std::string pattern;
    std::vector<std::string> codecs;
  };
  std::vector<Rule> rules{};
};

/// "PATTERN=codec,codec" or "PATTERN=" (raw). Errors: kInvalidArgument.
Result<Policy::Rule> parse_rule(std::string_view text);

/// Per tensor a bit for each codec it may take.
/// Errors: kInvalidArgument when a rule names a codec that is not among `codecs`.
Result<std::vector<std::uint32_t>> allowed_codecs(const Policy& policy, const Trace& trace,
                                                  std::span<const codec::Spec> codecs);

/// Whether a name matches a pattern in which * stands for any text and ? for one character.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace gradpress::plan
