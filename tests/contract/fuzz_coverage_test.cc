#include <gradpress/codec.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

namespace gradpress {
namespace {

TEST(FuzzCoverage, EveryRegisteredCodecHasAFuzzer) {
  for (const CodecHelp& help : codec_help()) {
    const std::string_view name = help.example.substr(0, help.example.find(':'));
    std::istringstream texts(GRADPRESS_FUZZED_CODECS);
    bool found = false;
    for (std::string text; texts >> text;) found = found || text.substr(0, text.find(':')) == name;
    EXPECT_TRUE(found) << name << " is missing in fuzz/codecs.cmake";
  }
}

}  // namespace
}  // namespace gradpress
