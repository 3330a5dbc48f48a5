#include "kernels/target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/target.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace gradpress::kernels::HWY_NAMESPACE {

// Asked through the same dispatch as every kernel, so that the answer is what really runs.
std::int64_t running_target() { return HWY_TARGET; }

}  // namespace gradpress::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gradpress::kernels {

HWY_EXPORT(running_target);

std::vector<std::string> supported_targets() {
  std::vector<std::string> names;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    names.emplace_back(hwy::TargetName(target));
  }
  return names;
}

std::string active_target() { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(running_target)()); }

Result<ScopedTarget> ScopedTarget::pin(std::string_view name) {
  std::string known;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      return ScopedTarget();
    }
    known.append(known.empty() ? "" : ", ").append(hwy::TargetName(target));
  }
  return fail(Code::kInvalidArgument, "no kernel target \"", name, "\" here: this machine runs ",
              known);
}

ScopedTarget::ScopedTarget(ScopedTarget&& other) noexcept : owns_(other.owns_) {
  other.owns_ = false;
}

ScopedTarget::~ScopedTarget() {
  if (!owns_) return;
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace gradpress::kernels
#endif  // HWY_ONCE
