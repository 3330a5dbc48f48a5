// BytePS-Compress: on the host, between machines only, every tensor from a size on.
#include "plan/search/isolated.h"
#include "plan/search/request.h"

namespace gradpress::plan {

namespace {

/// BytePS's default for BYTEPS_MIN_COMPRESS_BYTES.
constexpr std::uint64_t kFromBytes = 65536;

}  // namespace

Result<Strategy> plan_byteps_compress(const Request& request) {
  Request host = request;
  host.tree.device = false;
  auto encoded = plan_isolated(
      host, [](const Option& option) { return is_inter_family(option) && !option.is_raw(); });
  if (!encoded) return encoded;
  const auto raw = plan_isolated(
      host, [](const Option& option) { return is_inter_family(option) && option.is_raw(); });
  if (!raw) return raw;
  for (std::size_t i = 0; i < encoded->choices.size(); ++i) {
    if (4 * request.setting.trace.tensors[i].elements < kFromBytes) {
      encoded->choices[i] = raw->choices[i];
    }
  }
  return encoded;
}

}  // namespace gradpress::plan
