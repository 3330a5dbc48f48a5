#include <gradpress/codec.h>

#include <algorithm>
#include <array>

#include "codec/codecs.h"
#include "codec/spec.h"

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
    Registered{Kind::kEfSign, codec::make_efsign},
    Registered{Kind::kOneBit, codec::make_onebit},
    Registered{Kind::kQsgd, codec::make_qsgd},
    Registered{Kind::kTernGrad, codec::make_terngrad},
    Registered{Kind::kNatural, codec::make_natural},
    Registered{Kind::kInt8, codec::make_int8},
    Registered{Kind::kPowerSgd, codec::make_powersgd},
    Registered{Kind::kAcpSgd, codec::make_acpsgd},
    Registered{Kind::kTopK, codec::make_topk},
    Registered{Kind::kRandomK, codec::make_randomk},
    Registered{Kind::kDgc, codec::make_dgc},
    Registered{Kind::kRedSync, codec::make_redsync},
    Registered{Kind::kRedSyncQ, codec::make_redsync_q},
};

constexpr std::array kHelp = {
    CodecHelp{"none", "none", "no compression: the gradient's own bytes"},
    CodecHelp{"fp16", "fp16", "IEEE half precision, reducible; small values vanish below 2^-25"},
    CodecHelp{"bf16", "bf16", "bfloat16, reducible: float's range with 8 significant bits"},
    CodecHelp{"sign", "sign", "signs and a majority vote, 1 bit an element"},
    CodecHelp{"efsign", "efsign", "signs scaled by the mean magnitude, with error feedback"},
    CodecHelp{"onebit", "onebit", "signs with one mean per side, with error feedback"},
    CodecHelp{"qsgd:BITS[:block=N]", "qsgd:8", "random rounding to levels of each block's norm"},
    CodecHelp{"terngrad[:clip=SIGMAS]", "terngrad",
              "minus, zero or plus one scale, 2 bits an element"},
    CodecHelp{"natural", "natural", "random rounding to powers of two, 8 bits an element"},
    CodecHelp{"int8[:block=N]", "int8", "8 bits against each block's largest, with error feedback"},
    CodecHelp{"powersgd:RANK", "powersgd:4", "two thin factors a step, by warm power iteration"},
    CodecHelp{"acpsgd:RANK", "acpsgd:4", "one thin factor a step, left and right in turn"},
    CodecHelp{"topk:RATIO", "topk:0.01", "exactly the largest elements, with error feedback"},
    CodecHelp{"randomk:RATIO", "randomk:0.01",
              "elements drawn alike on all workers: values alone travel, all-reduce works"},
    CodecHelp{"dgc:RATIO", "dgc:0.001", "the largest elements by a sampled threshold"},
    CodecHelp{"redsync:RATIO", "redsync:0.001",
              "the largest elements, selected by tensor size, thresholds reused"},
    CodecHelp{"redsync-q:RATIO", "redsync-q:0.001",
              "the largest elements of alternating sign, sent as indices and one mean"},
};

static_assert(kCodecs.size() == kHelp.size(), "every codec has a factory and a line of help");

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

std::span<const CodecHelp> codec_help() { return kHelp; }

}  // namespace gradpress
