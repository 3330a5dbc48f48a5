#include <gradpress/codec.h>

#include <algorithm>
#include <array>
#include <vector>

#include "codec/codecs.h"
#include "spec/facts.h"

namespace gradpress {

namespace {

using codec::Kind;

struct Registered {
  Kind kind;
  std::unique_ptr<const Codec> (*make)(const codec::Spec& spec);
};

constexpr std::array kCodecs = {
    Registered{Kind::kNone, codec::make_none},
    Registered{Kind::kFp16, codec::make_cast},
    Registered{Kind::kBf16, codec::make_cast},
    Registered{Kind::kSign, codec::make_sign},
    Registered{Kind::kSignum, codec::make_sign},
    Registered{Kind::kEfSign, codec::make_efsign},
    Registered{Kind::kOneBit, codec::make_onebit},
    Registered{Kind::kQsgd, codec::make_qsgd},
    Registered{Kind::kTernGrad, codec::make_terngrad},
    Registered{Kind::kNatural, codec::make_natural},
    Registered{Kind::kInt8, codec::make_int8},
    Registered{Kind::kKashin, codec::make_kashin},
    Registered{Kind::kPowerSgd, codec::make_powersgd},
    Registered{Kind::kAcpSgd, codec::make_acpsgd},
    Registered{Kind::kTopK, codec::make_topk},
    Registered{Kind::kChunkTopK, codec::make_chunktopk},
    Registered{Kind::kRandomK, codec::make_randomk},
    Registered{Kind::kDgc, codec::make_dgc},
    Registered{Kind::kRedSync, codec::make_redsync},
    Registered{Kind::kRedSyncQ, codec::make_redsync_q},
};

std::vector<CodecHelp> help_lines() {
  std::vector<CodecHelp> lines;
  for (const codec::Facts& facts : codec::all_facts()) {
    lines.push_back({.usage = facts.usage, .example = facts.example, .about = facts.about});
  }
  return lines;
}

}  // namespace

Result<std::unique_ptr<const Codec>> make_codec(std::string_view text) {
  const auto spec = codec::parse_spec(text);
  if (!spec) return tl::unexpected(spec.error());
  const auto* found = std::ranges::find(kCodecs, spec->kind, &Registered::kind);
  if (found == kCodecs.end()) {
    return fail(Code::kInternal, "codec \"", text, "\" is known by name but not built");
  }
  return found->make(*spec);
}

std::span<const CodecHelp> codec_help() {
  static const std::vector<CodecHelp> lines = help_lines();
  return lines;
}

}  // namespace gradpress
