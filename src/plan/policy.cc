#include "plan/policy.h"

#include <algorithm>

namespace gradpress::plan {

bool matches(std::string_view pattern, std::string_view name) {
  // The last * seen and where its text began: on a mismatch it takes one character more.
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;
  std::size_t resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) && pattern[p] != '*') {
      ++p;
      ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<Policy::Rule> parse_rule(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return fail(Code::kInvalidArgument, "rule \"", text,
                "\": wanted PATTERN=CODEC,CODEC or PATTERN= for raw");
  }
  Policy::Rule rule{.pattern = std::string(text.substr(0, equals)), .codecs = {}};
  std::string_view rest = text.substr(equals + 1);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    const auto spec = codec::parse_spec(name);
    if (!spec) return tl::unexpected(spec.error());
    rule.codecs.push_back(codec::to_text(*spec));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return rule;
}

Result<std::vector<std::uint32_t>> allowed_codecs(const Policy& policy, const Trace& trace,
                                                  std::span<const codec::Spec> codecs) {
  std::vector<std::uint32_t> masks;
  for (const Policy::Rule& rule : policy.rules) {
    std::uint32_t mask = 0;
    for (const std::string& name : rule.codecs) {
      const auto found = std::ranges::find_if(
          codecs, [&](const codec::Spec& spec) { return codec::to_text(spec) == name; });
      if (found == codecs.end()) {
        return fail(Code::kInvalidArgument, "rule for \"", rule.pattern, "\": codec ", name,
                    " is not among those to plan with");
      }
      mask |= 1U << static_cast<unsigned>(found - codecs.begin());
    }
    masks.push_back(mask);
  }
  std::vector<std::uint32_t> allowed;
  allowed.reserve(trace.tensors.size());
  for (const Tensor& tensor : trace.tensors) {
    std::uint32_t mask = ~0U;
    for (std::size_t i = policy.rules.size(); i-- > 0;) {
      if (matches(policy.rules[i].pattern, tensor.name)) mask = masks[i];
    }
    const bool is_vector = !tensor.shape.is_matrix();
    if ((policy.exempt_vectors && is_vector) || tensor.elements < policy.exempt_below_elems) {
      mask = 0;
    }
    allowed.push_back(mask);
  }
  return allowed;
}

}  // namespace gradpress::plan
