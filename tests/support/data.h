// Recorded traces and clusters, which the project does not ship. Tests run on built-in models, and
// on these where they are.
#pragma once

#include <cstdlib>
#include <string>

namespace gradpress::test {

/// The folder GRADPRESS_DATA names, or an empty text.
inline std::string data_folder() {
  const char* const folder = std::getenv("GRADPRESS_DATA");
  return folder == nullptr ? std::string() : std::string(folder);
}

}  // namespace gradpress::test
