// The table of facts as JSON, for programs: what the C interface and the command line tell.
#pragma once

#include "base/json.h"
#include "spec/spec.h"

namespace gradpress::codec {

/// What a codec's text says and what is true of that codec, as gradpress_codec_facts in
/// gradpress/c_api.h describes it.
Json to_json(const Spec& spec);

/// All codecs, as gradpress_codec_list describes it.
Json list_of_codecs();

}  // namespace gradpress::codec
