// In place of gloo.cc where Gloo is not there.
#include "comm/gloo/gloo.h"

namespace gradpress::comm {

bool has_gloo() { return false; }

Result<std::unique_ptr<Group>> connect_gloo(GlooOptions) {
  return fail(Code::kInvalidArgument,
              "backend gloo: this build has none; install libgloo-dev and build with "
              "-DGRADPRESS_WITH_GLOO=ON");
}

}  // namespace gradpress::comm
