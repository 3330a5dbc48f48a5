// The traces, clusters and texts that tests read but the project does not ship.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace gradpress::test {

/// The folder GRADPRESS_DATA names, or an empty text.
inline std::string data_folder() {
  const char* const folder = std::getenv("GRADPRESS_DATA");
  return folder == nullptr ? std::string() : std::string(folder);
}

}  // namespace gradpress::test

/// Ends a test that needs the data where there is none, and says so.
#define GRADPRESS_NEEDS_DATA()                                                 \
  if (gradpress::test::data_folder().empty()) {                                \
    GTEST_SKIP() << "GRADPRESS_DATA names no folder with traces and clusters"; \
  }
