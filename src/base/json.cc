#include "base/json.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

namespace gradpress {

Result<Json> read_json(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return fail(Code::kInvalidArgument, path.string(),
                ": cannot be read: ", std::generic_category().message(errno));
  }
  // read() keeps failures (a folder, a bad disk) in the stream; iterators would throw them.
  std::string text;
  std::array<char, 65536> block;
  while (file.read(block.data(), block.size()) || file.gcount() > 0) {
    text.append(block.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) {
    return fail(Code::kInvalidArgument, path.string(),
                ": cannot be read: ", std::generic_category().message(errno));
  }
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(error.byte, text.size()));
    const auto line = 1 + std::count(text.begin(), end, '\n');
    return fail(Code::kInvalidArgument, path.string(), ":", line, ": not JSON: ", error.what());
  }
}

Status can_write(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (std::filesystem::is_directory(path) || access(folder.c_str(), W_OK | X_OK) != 0) {
    return Status::error(Code::kInvalidArgument, path.string(), ": cannot be written: ",
                         std::filesystem::is_directory(path)
                             ? "it is a folder"
                             : std::generic_category().message(errno));
  }
  return {};
}

Status write_json(const std::filesystem::path& path, const Json& value) {
  std::filesystem::path scratch = path;
  scratch += ".part";
  {
    std::ofstream file(scratch, std::ios::binary | std::ios::trunc);
    file << value.dump(2) << '\n';
    file.flush();
    if (!file) {
      return Status::error(Code::kInvalidArgument, path.string(),
                           ": cannot be written: ", std::generic_category().message(errno));
    }
  }
  std::error_code error;
  std::filesystem::rename(scratch, path, error);
  if (error) {
    return Status::error(Code::kInvalidArgument, path.string(),
                         ": cannot be written: ", error.message());
  }
  return {};
}

}  // namespace gradpress
