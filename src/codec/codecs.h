// The factories the registry calls, one per codec file; the classes stay in their .cc.
#pragma once

#include <gradpress/codec.h>

#include <memory>

#include "spec/spec.h"

namespace gradpress::codec {

std::unique_ptr<const Codec> make_none(const Spec& spec);
/// fp16 and bf16.
std::unique_ptr<const Codec> make_cast(const Spec& spec);
/// sign and signum.
std::unique_ptr<const Codec> make_sign(const Spec& spec);
std::unique_ptr<const Codec> make_efsign(const Spec& spec);
std::unique_ptr<const Codec> make_onebit(const Spec& spec);
std::unique_ptr<const Codec> make_qsgd(const Spec& spec);
std::unique_ptr<const Codec> make_terngrad(const Spec& spec);
std::unique_ptr<const Codec> make_natural(const Spec& spec);
std::unique_ptr<const Codec> make_int8(const Spec& spec);
std::unique_ptr<const Codec> make_kashin(const Spec& spec);
std::unique_ptr<const Codec> make_powersgd(const Spec& spec);
std::unique_ptr<const Codec> make_acpsgd(const Spec& spec);
std::unique_ptr<const Codec> make_topk(const Spec& spec);
std::unique_ptr<const Codec> make_chunktopk(const Spec& spec);
std::unique_ptr<const Codec> make_randomk(const Spec& spec);
std::unique_ptr<const Codec> make_dgc(const Spec& spec);
std::unique_ptr<const Codec> make_redsync(const Spec& spec);
std::unique_ptr<const Codec> make_redsync_q(const Spec& spec);

}  // namespace gradpress::codec
