// The contract suites run once per codec text.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "support/group.h"

namespace gradpress::test {

class EveryCodec : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string& text() const { return GetParam(); }
  std::uint64_t seed_ = run_seed();
};

}  // namespace gradpress::test

#define GRADPRESS_FOR_EVERY_CODEC(fixture)                                  \
  INSTANTIATE_TEST_SUITE_P(                                                 \
      Codecs, fixture, ::testing::ValuesIn(gradpress::test::codec_texts()), \
      [](const auto& param_info) { return gradpress::test::text_as_name(param_info.param); })
