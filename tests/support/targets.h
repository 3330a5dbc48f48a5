// Runs a test once per SIMD target the CPU has, and proves that the pinned target is the one that
// ran.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/target.h"

namespace gradpress::test {

/// Base of a TEST_P fixture with the target's name as parameter.
class OnEveryTarget : public ::testing::TestWithParam<std::string> {
 protected:
  OnEveryTarget() : pinned_(kernels::ScopedTarget::pin(GetParam())) {}
  void SetUp() override {
    ASSERT_TRUE(pinned_.has_value()) << pinned_.error().to_string();
    ASSERT_EQ(kernels::active_target(), GetParam()) << "fell back: this run would prove nothing";
  }

 private:
  Result<kernels::ScopedTarget> pinned_;
};

}  // namespace gradpress::test

#define GRADPRESS_ON_EVERY_TARGET(fixture)                                               \
  INSTANTIATE_TEST_SUITE_P(Targets, fixture,                                             \
                           ::testing::ValuesIn(gradpress::kernels::supported_targets()), \
                           [](const auto& param_info) { return param_info.param; })
