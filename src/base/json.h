// JSON files in and out, with errors that name the file and the place in it.
#pragma once

#include <gradpress/status.h>

#include <filesystem>
#include <nlohmann/json.hpp>

namespace gradpress {

using Json = nlohmann::ordered_json;

/// Errors: kInvalidArgument when the file cannot be read (with the reason) or does not parse (with
/// the line).
Result<Json> read_json(const std::filesystem::path& path);

/// Whether write_json could write there: asked before long work whose result would otherwise be
/// lost. Errors: kInvalidArgument, with the reason.
Status can_write(const std::filesystem::path& path);

/// Writes to a temporary name beside `path` and renames, so that no reader sees half a file.
/// Errors: kInvalidArgument when the folder cannot be written.
Status write_json(const std::filesystem::path& path, const Json& value);

}  // namespace gradpress
